import { integer, setting, settings, type Values } from '#core/base/setting.ts'

export const memoryRuleSettings = settings('workers', {
  MEMORY_RULE_TIMEOUT_SECONDS: setting(integer(1), '120', 'Timeout of the handler of a memory rule firing.'),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof memoryRuleSettings> {}
}
