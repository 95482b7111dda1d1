import {
  optional,
  positiveOr,
  positiveOrUnset,
  setting,
  settings,
  text,
  type Values,
  zeroOr,
} from '#core/base/setting.ts'

export const runWaitSettings = settings('process', {
  ORCHESTRATION_WAIT_MAX_MS: setting(positiveOr(120_000), '120000', 'Maximum time `wait` waits for a run.'),
})

export const runSettings = settings('workers', {
  MAX_ORCHESTRATION_RUN_DEPTH: setting(
    positiveOr(10),
    '10',
    'Maximum nesting depth of orchestration runs. Invalid values fall back to the default.',
  ),
  ORCHESTRATION_QUEUE_DRIVER: setting(
    text,
    'postgres',
    'Queue driver; only `postgres` is supported. With any other value, runs and run workers do not start.',
  ),
  ORCHESTRATION_WORKER_CONCURRENCY: setting(positiveOr(10), '10', 'Node executions run concurrently per process.'),
  ORCHESTRATION_ADVANCE_CONCURRENCY: setting(positiveOr(4), '4', 'Run advances executed concurrently per process.'),
  ORCHESTRATION_PROJECT_MAX_ACTIVE_NODES: setting(
    zeroOr(50),
    '50',
    'Maximum concurrent node executions per project, across all processes; 0 disables the limit.',
  ),
  ORCHESTRATION_NODE_LEASE_SECONDS: setting(
    positiveOr(60),
    '60',
    'Lease of a node execution, renewed every third of it.',
  ),
  ORCHESTRATION_NODE_MAX_DELIVERIES: setting(
    positiveOr(5),
    '5',
    'Maximum claims of a node execution after lost workers.',
  ),
  ORCHESTRATION_NODE_TIMEOUT_MS: setting(
    positiveOr(600_000),
    '600000',
    'Default timeout of an execution of a tool, poll, knowledge or memory_write node.',
  ),
  ORCHESTRATION_RUN_MAX_STEPS: setting(positiveOr(10_000), '10000', 'Maximum node executions and polls per run.'),
  ORCHESTRATION_SCHEDULER_INTERVAL_MS: setting(
    positiveOr(5000),
    '5000',
    'Polling interval for due runs and expired leases.',
  ),
  ORCHESTRATION_SHUTDOWN_GRACE_MS: setting(
    positiveOrUnset,
    '',
    'Shutdown grace of run advances and node executions; default SHUTDOWN_GRACE_MS.',
  ),
  ORCHESTRATION_WORKER_HEARTBEAT_FILE: setting(
    optional,
    '',
    'File written by a run worker after each successful poll of its queues, for health checks without HTTP.',
  ),
  ORCHESTRATION_WORKER_HEARTBEAT_STALE_MS: setting(
    positiveOr(30_000),
    '30000',
    'Age of the heartbeat file at which the worker is not ready.',
  ),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof runWaitSettings>, Values<typeof runSettings> {}
}
