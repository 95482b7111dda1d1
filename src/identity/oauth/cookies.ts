import type { Config } from '../../config.ts'
import { cookieName } from '../signed-cookies.ts'

/** The cookies that bind a browser to what it began. */
export const cookieNames = (config: Pick<Config, 'BASE_URL'>) => ({
  session: cookieName(config, 'oauth_session'),
  interaction: cookieName(config, 'oauth_interaction'),
  resume: cookieName(config, 'oauth_resume'),
})
