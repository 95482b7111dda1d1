import { positiveOr, setting, settings, type Values } from '#core/base/setting.ts'

export const evalSettings = settings('workers', {
  EVAL_WORKER_BATCH: setting(
    positiveOr(5),
    '5',
    'Eval items executed concurrently per worker process. Invalid values fall back to the default.',
  ),
  EVAL_WORKER_INTERVAL_MS: setting(
    positiveOr(5000),
    '5000',
    'Polling interval for orphaned eval items and runs. Invalid values fall back to the default.',
  ),
  EVAL_TASK_LEASE_TTL_MS: setting(
    positiveOr(300_000),
    '300000',
    'Lease of an eval item, at most 60 seconds, and the time for which it occupies a slot while it waits for its turn. Invalid values fall back to the default.',
  ),
  EVAL_RUN_ABANDONED_AFTER_MS: setting(
    positiveOr(1_800_000),
    '1800000',
    'Time after which an eval item that waits for its turn is checked; it fails if the turn was deleted. Invalid values fall back to the default.',
  ),
  EVAL_SYNC_ITEM_CAP: setting(
    positiveOr(25),
    '25',
    'Maximum items of an eval run with `wait`. Invalid values fall back to the default.',
  ),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof evalSettings> {}
}
