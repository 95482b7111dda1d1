import { randomBytes } from 'node:crypto'
import { hostname } from 'node:os'
import { z } from 'zod'
import {
  derived,
  flag,
  httpUrl,
  integer,
  list,
  number,
  optional,
  setting,
  settings,
  text,
  type Values,
} from './setting.ts'

const isHttpUrl = (text: string): boolean => /^https?:$/.test(URL.parse(text)?.protocol ?? '')

const percentDecoded = (text: string): string | null => {
  try {
    return decodeURIComponent(text)
  } catch {
    return null
  }
}

/** Pairs `name=value`, comma-separated and percent-encoded. */
const pairs = list.transform((items, context): Record<string, string> => {
  const parsed: Record<string, string> = {}
  for (const item of items) {
    const [name, ...rest] = item.split('=')
    const value = percentDecoded(rest.join('=').trim())
    if (rest.length > 0 && name.trim() !== '' && value !== null) parsed[name.trim()] = value
    else context.addIssue({ code: 'custom', message: 'must be name=value, comma-separated and percent-encoded' })
  }
  return parsed
})

export const processSettings = settings(
  'process',
  {
    NODE_ENV: setting(
      z.enum(['development', 'test', 'production']) as z.ZodType<'development' | 'test' | 'production', string>,
      'development',
      'Environment; `production` refuses development defaults.',
    ),
    PORT: setting(integer(0, 65535), '5047', 'Port of the web process.'),
    HOST: setting(
      text,
      '0.0.0.0',
      'Address on which the web process listens; with `npm start` the default is 127.0.0.1.',
    ),
    BASE_URL: setting(derived(optional), '', 'Public URL of the deployment; default `http://localhost:PORT`.', {
      production: true,
    }),
    DOCS_BASE_URL: setting(derived(optional), '', 'URL of the reference pages; default `BASE_URL/docs`.'),
    LOG_LEVEL: setting(
      z.enum(['trace', 'debug', 'info', 'warn', 'error', 'fatal', 'silent']) as z.ZodType<string, string>,
      'info',
      'Level of the JSON log.',
    ),
    SHUTDOWN_GRACE_MS: setting(integer(0), '30000', 'Time for work in flight to finish after SIGTERM.'),
    INSTANCE_ID: setting(
      derived(optional),
      process.env.HOSTNAME ?? '',
      'Name of the host in heartbeats and logs; default HOSTNAME.',
      { documented: '' },
    ),
  },
  (config, problem, env) => {
    config.baseUrlGiven = config.BASE_URL !== null && config.BASE_URL !== undefined
    config.BASE_URL = (config.BASE_URL ?? `http://localhost:${config.PORT}`).replace(/(?<!\/)\/+$/, '')
    if (config.baseUrlGiven && !isHttpUrl(config.BASE_URL)) problem('BASE_URL', 'must be an absolute http or https URL')
    config.DOCS_BASE_URL = (config.DOCS_BASE_URL ?? `${config.BASE_URL}/docs`).replace(/(?<!\/)\/+$/, '')
    if (env.DOCS_BASE_URL && !isHttpUrl(config.DOCS_BASE_URL))
      problem('DOCS_BASE_URL', 'must be an absolute http or https URL')
    config.INSTANCE_ID ??= `${hostname()}-${randomBytes(4).toString('hex')}`
  },
)

export const faultSettings = settings(
  'workers',
  {
    FAULT_POINTS: setting(
      optional,
      '',
      'Fault injection for tests: `point=kill`, `point=freeze:<ms>` or `format=version:<n>`; refused in production.',
    ),
  },
  (config, problem) => {
    if (config.production && config.FAULT_POINTS) problem('FAULT_POINTS', 'must not be set in production')
  },
)

/** Variables of the OpenTelemetry specification, and further ones of this service. */
export const telemetrySettings = settings('telemetry', {
  OTEL_EXPORTER_OTLP_ENDPOINT: setting(
    httpUrl,
    '',
    'URL of an OpenTelemetry collector that takes OTLP as JSON over HTTP; `/v1/traces` and `/v1/metrics` are appended. Unset: no telemetry.',
  ),
  OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: setting(
    httpUrl,
    '',
    'URL for traces, in place of the one derived from OTEL_EXPORTER_OTLP_ENDPOINT.',
  ),
  OTEL_EXPORTER_OTLP_METRICS_ENDPOINT: setting(
    httpUrl,
    '',
    'URL for metrics, in place of the one derived from OTEL_EXPORTER_OTLP_ENDPOINT.',
  ),
  OTEL_EXPORTER_OTLP_HEADERS: setting(
    pairs,
    '',
    'Headers of requests to the collector, as `name=value`, comma-separated and percent-encoded.',
    { secret: true },
  ),
  OTEL_SERVICE_NAME: setting(optional, '', 'Name of the service; default `muster-web` or `muster-worker`.'),
  OTEL_RESOURCE_ATTRIBUTES: setting(
    pairs,
    '',
    'Attributes of the process, as `name=value`, comma-separated and percent-encoded.',
  ),
  OTEL_SDK_DISABLED: setting(flag, 'false', 'Whether telemetry is off although an endpoint is set.'),
  OTEL_TRACES_SAMPLER: setting(
    z.enum([
      'always_on',
      'always_off',
      'traceidratio',
      'parentbased_always_on',
      'parentbased_always_off',
      'parentbased_traceidratio',
    ]) as z.ZodType<string, string>,
    'parentbased_traceidratio',
    'Which new traces are exported; failed work and work of more than 30 s always are.',
  ),
  OTEL_TRACES_SAMPLER_ARG: setting(number(0, 1), '0.1', 'Share of new traces that a ratio sampler exports.'),
  OTEL_BSP_SCHEDULE_DELAY: setting(
    integer(1),
    '5000',
    'Longest time that a span waits for its batch, in milliseconds.',
  ),
  OTEL_BSP_MAX_QUEUE_SIZE: setting(
    integer(1, 100_000),
    '2048',
    'Spans that wait for the collector; further ones are dropped and counted.',
  ),
  OTEL_BSP_MAX_EXPORT_BATCH_SIZE: setting(integer(1, 10_000), '512', 'Most spans of a request to the collector.'),
  OTEL_BSP_EXPORT_TIMEOUT: setting(
    integer(1),
    '5000',
    'Time for a request to the collector with its retries, in milliseconds.',
  ),
  OTEL_METRIC_EXPORT_INTERVAL: setting(integer(100), '60000', 'Time between two exports of metrics, in milliseconds.'),
  OTEL_METRICS_BY_PROJECT: setting(
    flag,
    'false',
    'Whether turns, tokens and cost are counted by project: the 200 busiest of each process, and `other`.',
  ),
  OTEL_PROPAGATE_HOSTS: setting(
    text,
    '',
    'Hosts that receive the trace context as the header `traceparent`, in the syntax of EGRESS_ALLOW_HOSTS.',
  ),
  OTEL_TRUST_INCOMING: setting(
    flag,
    'false',
    'Whether a `traceparent` of a client is the parent of its request, sampled flag included; otherwise it is only linked.',
  ),
  OTEL_CAPTURE_CONTENT: setting(
    flag,
    'false',
    'Whether spans of model calls of turns have their messages, at most 8 KB each way, where the content of the turn is kept.',
  ),
  OTEL_CAPTURE_USER: setting(
    flag,
    'false',
    'Whether spans of turns of an end user, and of requests by their token, have the external ID of the end user as `user.id`.',
  ),
  OTEL_DB_SPANS: setting(flag, 'false', 'Whether statements have spans, without their text and values.'),
})

declare module './config.ts' {
  interface Config
    extends Values<typeof processSettings>,
      Values<typeof faultSettings>,
      Values<typeof telemetrySettings> {
    /** Whether BASE_URL is set, not derived from PORT. */
    baseUrlGiven: boolean
  }
}
