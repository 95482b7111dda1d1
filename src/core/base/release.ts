import { readFileSync } from 'node:fs'

/** The version of Muster, from package.json. */
export const release = (
  JSON.parse(readFileSync(new URL('../../../package.json', import.meta.url), 'utf8')) as { version: string }
).version
