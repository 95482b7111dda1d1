import { randomBytes } from 'node:crypto'
import fs from 'node:fs'
import { parseEnv } from 'node:util'
import { print } from './output.ts'

/** What a deployment of compose.yaml needs in its environment file, with a value for a new one. */
const VARIABLES: Record<string, () => string> = {
  BASE_URL: () => 'http://localhost:5047',
  JWT_SECRET: () => randomBytes(48).toString('base64url'),
  SECRETS_ENCRYPTION_KEY: () => randomBytes(32).toString('hex'),
  // Of digits and letters, because it is part of a URL.
  POSTGRES_PASSWORD: () => randomBytes(24).toString('hex'),
}

/** Returns the text of an environment file with values for the variables that have none, and their names. */
function withValues(text: string): { text: string; added: string[] } {
  const given = parseEnv(text)
  const added = Object.keys(VARIABLES).filter(name => !given[name])
  const lines = text === '' ? [] : text.trimEnd().split('\n')
  for (const name of added) {
    const empty = lines.findIndex(line => line.trim() === `${name}=`)
    lines.splice(empty < 0 ? lines.length : empty, empty < 0 ? 0 : 1, `${name}=${VARIABLES[name]()}`)
  }
  return { text: `${lines.join('\n')}\n`, added }
}

/** `muster init-env`: adds secrets to an environment file that only its owner may read. Values that it has stay. */
export function initEnvCommand(file: string): void {
  const target = fs.existsSync(file) ? fs.realpathSync(file) : file
  const { text, added } = withValues(fs.existsSync(target) ? fs.readFileSync(target, 'utf8') : '')
  // A process that is killed leaves the old file.
  const temporary = `${target}.${process.pid}`
  fs.writeFileSync(temporary, text, { mode: 0o600, flag: 'wx' })
  fs.renameSync(temporary, target)
  print(added.length > 0 ? `added ${added.join(', ')} to ${file}` : `${file} has all values`)
}
