import { execFileSync } from 'node:child_process'
import { inherited } from './processes.ts'

/** The environment of npm in a folder of a test, with the cache that `npm ci` filled: installing needs no network. */
export const npmEnvironment = (): Record<string, string> => ({
  ...inherited(),
  npm_config_cache: execFileSync('npm', ['config', 'get', 'cache'], { encoding: 'utf8' }).trim(),
})
