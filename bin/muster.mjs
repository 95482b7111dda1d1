#!/usr/bin/env node
import { existsSync } from 'node:fs'

// The program. JavaScript, because Node takes longer to start TypeScript than the whole of `muster --version` may take.

/** Commands that work on the database or the sources; all others are clients of the API. */
export const OPERATOR_VERBS = {
  up: 'run web, worker and a demo, and an embedded database unless DATABASE_URL is set',
  migrate: 'migrate the database to this version; waits while another process migrates',
  bootstrap: 'create the first admin',
  doctor: 'check configuration, database, queues, workers, keys and clock',
  modules: 'list modules, operations, queues, events and other names of this release',
  reprocess: 'repeat failed or orphaned work',
  'secrets verify': 'count encrypted values by key; exits 1 if a key is missing',
  'secrets reencrypt':
    'encrypt all values with the current key; can be interrupted and repeated; exits 1 if values remain',
  'oauth rotate-keys': 'create a new signing key for id_tokens; the previous key verifies for one day',
  settings: 'list all settings with their defaults',
  bench: 'measure this checkout: requests, files, turns, deliveries, searches, ingestion',
  'llm-double': 'serve, check and record scripted answers of models',
}

/** @param {readonly string[]} args */
const isOperatorVerb = ([first, second, third]) => {
  const words = first === 'help' ? [second, third] : [first, second]
  return Object.keys(OPERATOR_VERBS).some(verb => verb.split(' ').every((word, index) => words[index] === word))
}

/** @param {readonly string[]} args */
async function run(args) {
  if (isOperatorVerb(args)) {
    const { main } = await import('../src/cli/main.ts')
    const code = await main(args)
    // Whatever a successful command left open ends by itself.
    if (code !== 0) process.exit(code)
    return
  }
  const bundle = new URL('../cli/dist/main.js', import.meta.url)
  if (!existsSync(bundle)) {
    console.error('muster: the command line is not built: run npm run build')
    process.exit(1)
  }
  const { main } = await import(bundle.href)
  process.exit(await main(args, OPERATOR_VERBS))
}

await run(process.argv.slice(2))
