import { z } from 'zod'
import { flag, integer, list, setting, settings, type Values } from '../base/setting.ts'

export const WORKER_KINDS = [
  'delivery',
  'ingestion',
  'generation',
  'orchestration',
  'trigger',
  'evaluation',
  'snapshot',
] as const

const fraction = z.string().transform(Number).pipe(z.number().gt(0).max(1))

export const workerSettings = settings('workers', {
  WORKER_KINDS: setting(
    list.pipe(z.array(z.enum(WORKER_KINDS))),
    WORKER_KINDS.join(','),
    'Concerns of a worker process that is started without arguments.',
  ),
  WORKER_CONCURRENCY: setting(
    integer(1, 1000),
    '10',
    'Messages processed concurrently, per queue and process; with WEB_EXECUTES also turns per web process.',
  ),
  PROJECT_WORKER_SHARE: setting(
    fraction,
    '0.5',
    "Maximum share of a worker's slots per project while other projects wait.",
  ),
  WEB_EXECUTES: setting(
    flag,
    'false',
    'Whether web processes execute the turns outside of sessions that their callers wait for, up to WORKER_CONCURRENCY at a time, instead of leaving them to workers. Less latency and processor time where web and workers share a machine; with `npm start` the default is true.',
  ),
  WORKER_HEALTH_PORT: setting(integer(0, 65535), '5048', 'Port of the health endpoints of a worker.'),
  WORKER_HEARTBEAT_INTERVAL_MS: setting(integer(100), '5000', 'Interval of worker heartbeats.'),
  WORKER_HEARTBEAT_STALE_MS: setting(integer(500), '30000', 'Age of the heartbeat at which a worker is not ready.'),
})

declare module '../base/config.ts' {
  interface Config extends Values<typeof workerSettings> {}
}
