import { integer, setting, settings, type Values } from '#core/base/setting.ts'

export const approvalSettings = settings('control', {
  APPROVAL_SWEEP_INTERVAL_MS: setting(
    integer(1000),
    '60000',
    'Polling interval for expired approvals and unprocessed follow-ups.',
  ),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof approvalSettings> {}
}
