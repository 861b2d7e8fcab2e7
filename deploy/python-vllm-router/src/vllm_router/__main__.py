"""`python -m vllm_router`."""

from pd_router import main

if __name__ == "__main__":
    main()
