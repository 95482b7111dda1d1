import { flag, setting, settings, type Values } from '../base/setting.ts'

export const docsSettings = settings('process', {
  DOCS_ENABLED: setting(flag, 'true', 'Whether `/docs` has all pages; otherwise only error codes and permissions.'),
})

declare module '../base/config.ts' {
  interface Config extends Values<typeof docsSettings> {}
}
