import { integer, setting, settings, type Values } from '#core/base/setting.ts'

export const deciderSettings = settings('workers', {
  DECISION_LEASE_SECONDS: setting(
    integer(2),
    '600',
    'Lease of a decision whose tool is called, renewed every quarter of it.',
  ),
  DECISION_SWEEP_INTERVAL_MS: setting(integer(1000), '60000', 'Polling interval for orphaned decisions.'),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof deciderSettings> {}
}
