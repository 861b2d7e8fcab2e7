//! Planning a request: every policy, in pools of 2, 16 and 256 engines.

use criterion::{Criterion, criterion_group, criterion_main};
use http::HeaderMap;
use pd_benches::{fleet, text};
use pd_router::plan::name::PolicyName;
use pd_router::plan::{Planner, Settings};
use pd_router::request::api::Api;

const ENGINES: [usize; 3] = [2, 16, 256];
/// About 400 tokens, of which the table of prefixes learns the first time.
const TOKENS: usize = 400;

fn plan(criterion: &mut Criterion) {
    let api = Api::by_name("completions").expect("an API");
    let view = text(TOKENS, 1);
    let mut headers = HeaderMap::new();
    headers.insert("x-session-id", "s-1".parse().expect("a value"));
    for engines in ENGINES {
        let fleet = fleet(engines);
        let mut group = criterion.benchmark_group(format!("plan, {engines} engines a pool"));
        for (name, policy) in PolicyName::NAMES {
            if name != policy.as_str() {
                continue;
            }
            let planner = Planner::new(&Settings { prefill: policy, decode: policy, ..Settings::default() });
            group.bench_function(name, |bencher| {
                bencher.iter(|| {
                    let ask = planner.look(api, &headers, &view);
                    let plan = planner.plan(&ask, None, &fleet, &[]).expect("engines that are up");
                    planner.took(&ask, &plan.prefill.expect("prefill")[0]);
                    planner.took(&ask, &plan.decode[0]);
                });
            });
        }
        group.finish();
    }
}

criterion_group!(benches, plan);
criterion_main!(benches);
