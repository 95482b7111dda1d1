import { flag, integer, setting, settings, type Values } from '#core/base/setting.ts'

export const retentionSettings = settings('control', {
  CONTENT_RETENTION_SWEEP_INTERVAL_MS: setting(
    integer(1000),
    '86400000',
    'Interval of erasure and deletion according to the retention settings of projects: trace_content_retention_days, trace_retention_days, conversation_retention_days, run_retention_days.',
  ),
  CONTENT_RETENTION_SWEEP_DISABLED: setting(
    flag,
    'false',
    'Whether the retention settings of projects are not applied.',
  ),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof retentionSettings> {}
}
