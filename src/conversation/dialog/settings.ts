import { integer, setting, settings, type Values } from '#core/base/setting.ts'

export const conversationSettings = settings('workers', {
  CONVERSATION_SWEEP_SECONDS: setting(
    integer(1),
    '30',
    'Polling interval for conversations with due turns but no message.',
  ),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof conversationSettings> {}
}
