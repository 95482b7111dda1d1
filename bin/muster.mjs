#!/usr/bin/env node
import { existsSync } from 'node:fs'
import { OPERATOR_VERBS } from './operator-verbs.mjs'

// The program. JavaScript, because Node takes longer to start TypeScript than the whole of `muster --version` may take.

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
