//! A client for version 2.0 of the REST API of an MLflow server.

use std::time::Duration;

use serde_json::{Value as Json, json};

/// The reason why a request failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The server is unreachable, overloaded or failing: the request can be retried.
    Temporary(String),
    /// The server rejected the request, or did not respond like an MLflow server: a retry would
    /// fail too.
    Refused(String),
}

impl Failure {
    pub(super) fn text(&self) -> &str {
        match self {
            Failure::Temporary(text) | Failure::Refused(text) => text,
        }
    }
}

/// The timeout of one request.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The maximum number of metrics in one request.
pub(super) const MAX_METRICS: usize = 1000;

/// The maximum number of parameters in one request.
const MAX_PARAMS: usize = 100;

/// The maximum length of a name, in characters.
const MAX_NAME: usize = 250;

/// The maximum length of a parameter's value, in characters.
pub(super) const MAX_VALUE: usize = 6000;

/// A connection to a server.
#[derive(Clone)]
pub(super) struct Client {
    agent: ureq::Agent,
    server: String,
    token: Option<String>,
}

impl Client {
    pub(super) fn new(server: &str, token: Option<String>) -> Self {
        let config = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).http_status_as_error(false);
        Client { agent: config.build().into(), server: server.trim_end_matches('/').to_owned(), token }
    }

    fn url(&self, path: &str) -> String {
        format!("{}/api/2.0/mlflow/{path}", self.server)
    }

    fn post(&self, path: &str, body: &Json) -> Result<Json, Failure> {
        let request = self.agent.post(self.url(path)).header("Content-Type", "application/json");
        let request = match &self.token {
            Some(token) => request.header("Authorization", format!("Bearer {token}")),
            None => request,
        };
        self.answer(path, request.send(body.to_string()))
    }

    fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Json, Failure> {
        let mut request = self.agent.get(self.url(path));
        for (name, value) in query {
            request = request.query(name, value);
        }
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        self.answer(path, request.call())
    }

    fn answer(
        &self,
        path: &str,
        answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<Json, Failure> {
        let place = format!("{} ({path})", self.server);
        let mut answer = answer.map_err(|error| Failure::Temporary(format!("{place}: {error}")))?;
        let status = answer.status().as_u16();
        let body = answer.body_mut().read_to_string();
        let body = body.map_err(|error| Failure::Temporary(format!("{place}: {error}")))?;
        let json: Option<Json> = serde_json::from_str(&body).ok();
        if status == 200 {
            return json.ok_or_else(|| {
                Failure::Refused(format!(
                    "{place}: the response is not JSON: expected the address of an MLflow server"
                ))
            });
        }
        let field = |name: &str| json.as_ref()?.get(name)?.as_str().map(str::to_owned);
        let code = field("error_code").map_or_else(String::new, |code| format!(" {code}"));
        let text: String = field("message").unwrap_or(body).chars().take(500).collect();
        let text = format!("{place}: status {status}{code}: {text}");
        Err(if status >= 500 || matches!(status, 408 | 429) {
            Failure::Temporary(text)
        } else {
            Failure::Refused(text)
        })
    }

    /// Returns the ID of the experiment with this name. Creates it if it does not exist.
    pub(super) fn experiment(&self, name: &str) -> Result<String, Failure> {
        match self.get("experiments/get-by-name", &[("experiment_name", name)]) {
            Ok(json) => {
                if let Some(id) = json.pointer("/experiment/experiment_id").and_then(Json::as_str) {
                    return Ok(id.to_owned());
                }
            }
            Err(Failure::Refused(text)) if text.contains("RESOURCE_DOES_NOT_EXIST") => {}
            Err(error) => return Err(error),
        }
        let json = self.post("experiments/create", &json!({ "name": name }))?;
        json.pointer("/experiment_id").and_then(Json::as_str).map(str::to_owned).ok_or_else(|| {
            Failure::Refused(format!(
                "{}: the response has no `experiment_id`: expected the address of an MLflow server",
                self.server
            ))
        })
    }

    /// Creates a run, and returns its ID.
    pub(super) fn create_run(
        &self,
        experiment: &str,
        name: &str,
        start: u64,
        source: &str,
    ) -> Result<String, Failure> {
        let tags = json!([{ "key": "mlflow.source.name", "value": source }]);
        let body =
            json!({ "experiment_id": experiment, "run_name": name, "start_time": start, "tags": tags });
        let json = self.post("runs/create", &body)?;
        let id = json.pointer("/run/info/run_id").and_then(Json::as_str);
        id.map(str::to_owned).ok_or_else(|| {
            Failure::Refused(format!(
                "{}: the response has no `run_id`: expected the address of an MLflow server",
                self.server
            ))
        })
    }

    pub(super) fn log_params(&self, run: &str, params: &[(String, String)]) -> Result<(), Failure> {
        for params in params.chunks(MAX_PARAMS) {
            let params: Vec<_> = params
                .iter()
                .map(|(key, value)| json!({ "key": name(key), "value": value.chars().take(MAX_VALUE).collect::<String>() }))
                .collect();
            self.post("runs/log-batch", &json!({ "run_id": run, "params": params }))?;
        }
        Ok(())
    }

    /// Sends up to [`MAX_METRICS`] values.
    pub(super) fn log_metrics(&self, run: &str, metrics: &[Json]) -> Result<(), Failure> {
        self.post("runs/log-batch", &json!({ "run_id": run, "metrics": metrics })).map(drop)
    }

    /// Sets the status of a run: `RUNNING`, `FINISHED`, `FAILED` or `KILLED`.
    pub(super) fn set_status(&self, run: &str, status: &str, end: Option<u64>) -> Result<(), Failure> {
        let mut body = json!({ "run_id": run, "status": status });
        if let Some(end) = end {
            body["end_time"] = end.into();
        }
        self.post("runs/update", &body).map(drop)
    }

    /// Returns the name and the last step of each metric of a run.
    pub(super) fn last_steps(&self, run: &str) -> Result<Vec<(String, u64)>, Failure> {
        let json = self.get("runs/get", &[("run_id", run)])?;
        let metrics = json.pointer("/run/data/metrics").and_then(Json::as_array);
        let steps = metrics.into_iter().flatten().filter_map(|metric| {
            let key = metric.get("key")?.as_str()?;
            let step = metric.get("step").unwrap_or(&Json::Null);
            let step = step.as_u64().or_else(|| step.as_str()?.parse().ok()).unwrap_or(0);
            Some((key.to_owned(), step))
        });
        Ok(steps.collect())
    }
}

/// Converts a name to one that MLflow accepts: characters other than letters, digits, `_`, `-`,
/// `.`, `/` and spaces become `_`, and so do empty path components, `.` and `..`. A name of more
/// than 250 characters is shortened and ends with a hash.
pub(super) fn name(given: &str) -> String {
    let valid = given.replace(|letter: char| !letter.is_alphanumeric() && !"_-./ ".contains(letter), "_");
    // MLflow rejects paths that are not normalized.
    let words = valid.split('/').map(|word| if matches!(word, "" | "." | "..") { "_" } else { word });
    let valid = words.collect::<Vec<_>>().join("/");
    if valid.chars().count() <= MAX_NAME {
        return valid;
    }
    let hash = blake3::hash(given.as_bytes()).to_hex();
    format!("{}-{}", valid.chars().take(MAX_NAME - 17).collect::<String>(), &hash[..16])
}

#[cfg(test)]
mod tests {
    use super::name;

    #[test]
    fn names_are_converted_to_what_mlflow_accepts() {
        assert_eq!(name("train/loss"), "train/loss");
        assert_eq!(name("a//b, é/../c\n"), "a/_/b_ é/_/c_");
        let long = name(&"x".repeat(10_000));
        assert_eq!((long.chars().count(), &long[..3]), (250, "xxx"));
        assert_ne!(long, name(&"x".repeat(10_001)));
    }
}
