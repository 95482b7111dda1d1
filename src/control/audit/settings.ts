import { flag, integer, setting, settings, type Values } from '#core/base/setting.ts'

export const auditSettings = settings('control', {
  AUDIT_RETENTION_DAYS: setting(integer(0), '365', 'Retention of audit entries; 0 disables expiry.'),
  AUDIT_QUEUE_MAX_SIZE: setting(
    integer(1),
    '1000',
    'Maximum buffered audit entries of reads; further entries are dropped and counted.',
  ),
  AUDIT_RETENTION_SWEEP_DISABLED: setting(flag, 'false', 'Whether the daily deletion of audit entries is disabled.'),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof auditSettings> {}
}
