import { integer, setting, settings, type Values } from '#core/base/setting.ts'

export const agentSettings = settings('workers', {
  AGENT_MAX_STEPS_CEILING: setting(integer(1), '200', 'Maximum of max_steps.'),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof agentSettings> {}
}
