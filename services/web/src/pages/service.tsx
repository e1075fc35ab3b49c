// One service: its replicas, what is asked of it, and why it has as many as it has.

import { useState } from "preact/hooks";

import { answered, api, type Schemas } from "../api";
import { useAsked } from "../asking";
import { many } from "../format";
import { At, Card, Command, Empty, Problem, Wide } from "../parts/basics";
import { type Confirmed, Confirm } from "../parts/confirm";
import { Word } from "../parts/word";
import { nameIn, path } from "../router";
import { may } from "../session";
import { Latency, perSecond, round, ServiceState } from "./services";

type Service = Schemas["ServiceDetail"];

const LOOKS: Record<string, string> = {
  new: "submitted",
  waiting: "queued",
  running: "bound",
  ready: "running",
  draining: "stopping",
};

/** The page. */
export function ServicePage() {
  const name = nameIn(path.value, "/services");
  const [done, setDone] = useState(0);
  const [ask, setAsk] = useState<Confirmed | null>(null);
  const { value: service, problem } = useAsked(
    () => answered(api.GET("/v1/services/{service}", { params: { path: { service: name } } })),
    [name, round(), done],
  );
  if (!service)
    return problem ? (
      <>
        <h1>{name}</h1>
        <Problem text={problem} />
        <p>
          <a href="/services">All services</a>
        </p>
      </>
    ) : (
      <Empty>Loading {name} …</Empty>
    );
  const steers = service.state === "active" && may("change", service.vc, service.owner);
  return (
    <>
      <div class="title">
        <h1>
          {service.service} <span class="dim">{service.name}</span>
        </h1>
        <ServiceState row={service} />
        {service.why && <code class="chip">{service.why}</code>}
        <span class="more" role="group" aria-label="Actions">
          {steers && (
            <button type="button" class="danger" onClick={() => setAsk(stopOf(service))}>
              Stop
            </button>
          )}
        </span>
      </div>
      <Problem text={problem} />
      {service.detail && <p>{service.detail}</p>}
      <Tiles service={service} />
      <Replicas service={service} />
      <About service={service} />
      {ask && (
        <Confirm
          ask={ask}
          onClose={() => {
            setAsk(null);
            setDone(done + 1);
          }}
        />
      )}
    </>
  );
}

function stopOf(service: Service): Confirmed {
  return {
    title: `Stop ${service.service} ${service.name}`,
    verb: "Stop it",
    danger: true,
    text: "Each replica answers what it has, and ends. No further request is taken.",
    line: `skep services ${service.service} --stop`,
    run: () =>
      answered(
        api.DELETE("/v1/services/{service}", { params: { path: { service: service.service } } }),
      ),
  };
}

function Tiles({ service }: { service: Service }) {
  const follows = service.target_per_s !== null;
  return (
    <div class="tiles">
      <div class="tile">
        <b>
          {service.ready}
          <small class="dim"> of {service.wanted}</small>
        </b>
        <span>replicas ready; {service.replicas_max} at most</span>
      </div>
      <div class="tile">
        <b>{perSecond(service.requests_per_s)}</b>
        <span>
          requests per second
          {follows && `; each replica is to answer ${service.target_per_s}`}
        </span>
      </div>
      <div class="tile">
        <b>
          <Latency row={service} />
        </b>
        <span>for 95 % of the answers to begin, in the last 30 s</span>
      </div>
      <div class="tile">
        <b>{service.open}</b>
        <span>
          requests open at this gateway; {service.waiting} of them{" "}
          {service.waiting === 1 ? "waits" : "wait"} for a replica
        </span>
      </div>
    </div>
  );
}

function Replicas({ service }: { service: Service }) {
  return (
    <Card
      title={many(service.rows.length, "replica")}
      aside={<Command line={`skep services ${service.service}`} />}
    >
      {!service.rows.length && (
        <Empty>
          {service.state === "over"
            ? "It is over: all replicas have ended."
            : service.wanted
              ? "There is none: the next one is begun soon."
              : "There is none: the next request begins one."}
        </Empty>
      )}
      {service.rows.length > 0 && (
        <Wide label="Replicas">
          <table class="plain">
            <thead>
              <tr>
                <th>Replica</th>
                <th>Job</th>
                <th>State</th>
                <th>Revision</th>
                <th>Node</th>
                <th>Open</th>
                <th>Since</th>
                <th>Why</th>
              </tr>
            </thead>
            <tbody>
              {service.rows.map((row) => (
                <tr key={row.replica}>
                  <th scope="row">{row.replica}</th>
                  <td>
                    {row.job ? <a href={`/jobs/${encodeURIComponent(row.job)}`}>{row.job}</a> : "–"}
                  </td>
                  <td>
                    <Word as={LOOKS[row.stand] ?? "queued"} text={row.stand} />
                  </td>
                  <td>{row.revision}</td>
                  <td>{row.node ?? "–"}</td>
                  <td>{row.open}</td>
                  <td>
                    <At at={row.since} distance />
                  </td>
                  <td>{row.why ? <code>{row.why}</code> : <span class="dim">–</span>}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Wide>
      )}
    </Card>
  );
}

function About({ service }: { service: Service }) {
  return (
    <Card title="What it is">
      <dl class="facts inside">
        <dt>Virtual cluster</dt>
        <dd>{service.vc}</dd>
        {service.owner && (
          <>
            <dt>Owner</dt>
            <dd>{service.owner}</dd>
          </>
        )}
        <dt>Address</dt>
        <dd>
          <code>{service.url}</code>
        </dd>
        <dt>Revision</dt>
        <dd>{service.revision}</dd>
        {service.scaled_at && (
          <>
            <dt>Last scaled</dt>
            <dd>
              <At at={service.scaled_at} />, <code>{service.scaled_why}</code>
            </dd>
          </>
        )}
        <dt>Began</dt>
        <dd>
          <At at={service.began_at} />
        </dd>
        {service.ended_at && (
          <>
            <dt>Ended</dt>
            <dd>
              <At at={service.ended_at} />
            </dd>
          </>
        )}
      </dl>
      <details class="inside">
        <summary>Its spec</summary>
        <pre class="wide">{JSON.stringify(service.spec, null, 2)}</pre>
      </details>
    </Card>
  );
}
