import { positiveOr, setting, settings, type Values } from '#core/base/setting.ts'

export const chainSettings = settings('workers', {
  MAX_CONTINUATION_CHAIN_GENERATIONS: setting(
    positiveOr(100),
    '100',
    'Maximum turns of a continuation chain. Invalid values fall back to the default.',
  ),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof chainSettings> {}
}
