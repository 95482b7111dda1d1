import { integer, setting, settings, type Values } from '../base/setting.ts'

export const threadSettings = settings('process', {
  SCHEMA_THREADS: setting(
    integer(1, 64),
    '2',
    'Maximum threads that run JSON Schemas, long expressions and YAML templates of callers, started on demand; each uses 20 to 300 MiB.',
  ),
})

declare module '../base/config.ts' {
  interface Config extends Values<typeof threadSettings> {}
}
