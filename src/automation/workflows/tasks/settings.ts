import { positiveOr, setting, settings, type Values } from '#core/base/setting.ts'

export const taskSettings = settings('workers', {
  TASK_AUTOMATION_CHAIN_LIMIT: setting(
    positiveOr(50),
    '50',
    'Maximum consecutive automated transitions of a task. Invalid values fall back to the default.',
  ),
  TASK_APPROVAL_TTL_SECONDS: setting(
    positiveOr(86_400),
    '86400',
    'Time after which the approval of a task transition expires.',
  ),
  TASK_WORKER_CONCURRENCY: setting(positiveOr(10), '10', 'Task dispatches processed concurrently per process.'),
  TASKS_SCHEDULER_INTERVAL_MS: setting(
    positiveOr(5000),
    '5000',
    'Polling interval for stalled tasks, orphaned dispatches and overdue playbook steps.',
  ),
  TASKS_DISPATCH_LEASE_SECONDS: setting(positiveOr(300), '300', 'Lease of a task dispatch, renewed every third of it.'),
  TASKS_DISPATCH_RECONCILE_GRACE_MS: setting(
    positiveOr(60_000),
    '60000',
    'Delay before a task checks whether its dispatch settled without a notification; doubled after each check, at most an hour.',
  ),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof taskSettings> {}
}
