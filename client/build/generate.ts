import fs from 'node:fs'
import path from 'node:path'
import { createClient } from '@hey-api/openapi-ts'
import { commandFile } from './commands.ts'
import type { Description } from './description.ts'
import { sourcesOf } from './operations.ts'
import { reduce } from './reduce.ts'

/** Generates `client/src/generated` and `client/commands.json` from `client/openapi.json`. */

const client = path.resolve(import.meta.dirname, '..')
const generated = path.join(client, 'src/generated')
const description: Description = JSON.parse(fs.readFileSync(path.join(client, 'openapi.json'), 'utf8'))

await createClient({
  input: reduce(description) as unknown as Record<string, unknown>,
  output: { path: generated, entryFile: false },
  plugins: ['@hey-api/typescript'],
  logs: { level: 'warn', file: false },
})
for (const [name, text] of Object.entries(sourcesOf(description))) fs.writeFileSync(path.join(generated, name), text)
fs.writeFileSync(path.join(client, 'commands.json'), commandFile(description))
