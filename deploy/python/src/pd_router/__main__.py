"""`python -m pd_router`: the program itself, with the arguments as they were typed."""

from pd_router.cli import main

if __name__ == "__main__":
    main()
