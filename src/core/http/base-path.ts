import type { Config } from '../base/config.ts'

/** Returns the path under which a proxy serves the deployment; empty for none. */
export const basePath = ({ BASE_URL }: Pick<Config, 'BASE_URL'>): string =>
  new URL(BASE_URL).pathname.replace(/\/$/, '')
