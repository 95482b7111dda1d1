import { flag, setting, settings, type Values } from '#core/base/setting.ts'

export const shareSettings = settings('egress', {
  SHARES_ALLOW_PUBLIC: setting(flag, 'false', 'Whether projects may share tools and agents with all other projects.'),
})

declare module '#core/base/config.ts' {
  interface Config extends Values<typeof shareSettings> {}
}
