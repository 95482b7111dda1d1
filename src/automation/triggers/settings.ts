import { flag, integer, positiveOr, setting, settings, type Values } from '#core/base/setting.ts'

export const triggerSettings = settings('workers', {
  TRIGGER_WORKER_CONCURRENCY: setting(positiveOr(10), '10', 'Trigger firings processed concurrently per process.'),
  TRIGGER_SCHEDULER_INTERVAL_MS: setting(
    positiveOr(5000),
    '5000',
    'Maximum polling interval for due schedules, orphaned firings and firings of resumed projects.',
  ),
  TRIGGER_SCHEDULER_DISABLED: setting(flag, 'false', 'Whether workers skip schedules.'),
  TRIGGER_FIRING_LEASE_SECONDS: setting(positiveOr(60), '60', 'Lease of the message of a firing, at most 60.'),
  TRIGGER_FIRING_MAX_ATTEMPTS: setting(
    positiveOr(3),
    '3',
    'Maximum lost workers per tool call of a trigger; each calls the tool with the same idempotency key.',
  ),
  TRIGGER_FIRE_WAIT_MAX_MS: setting(positiveOr(120_000), '120000', 'Maximum time a manual firing waits.'),
  TRIGGER_HOOK_TOLERANCE_SECONDS: setting(
    positiveOr(300),
    '300',
    'Maximum clock difference of the timestamp of a signed hook.',
  ),
  TRIGGER_MAX_CAUSATION_DEPTH: setting(
    positiveOr(5),
    '5',
    'Maximum length of the trigger chain of an event that fires another trigger.',
  ),
  EVENT_FANOUT_MAX: setting(
    positiveOr(10_000),
    '10000',
    'Maximum event trigger firings caused, directly or indirectly, by one event or one manual, scheduled or requested firing.',
  ),
  TRIGGER_MAX_PER_PROJECT: setting(integer(1), '1000', 'Maximum triggers per project.'),
  TRIGGER_EVENT_MAX_PER_PROJECT: setting(
    integer(1, 1000),
    '100',
    'Maximum event triggers per project; each event is matched against all of them.',
  ),
  TRIGGER_FIRING_RETENTION_DAYS: setting(integer(1), '30', 'Retention of settled firings.'),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof triggerSettings> {}
}
