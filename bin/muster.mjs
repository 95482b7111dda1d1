#!/usr/bin/env node
import { existsSync, lstatSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import module from 'node:module'
import { homedir } from 'node:os'
import path from 'node:path'

// The program. JavaScript, because Node takes longer to start TypeScript than the whole of `muster --version` may take.

const VERBS = new URL('../src/operator/verbs.json', import.meta.url)

/**
 * Commands that work on the database or the sources, with their descriptions; all others are clients of the API. The package of
 * the command line has none.
 */
const OPERATOR_VERBS = existsSync(VERBS) ? JSON.parse(readFileSync(VERBS, 'utf8')) : {}

/** @param {readonly string[]} args */
const isOperatorVerb = ([first, second, third]) => {
  const words = first === 'help' ? [second, third] : [first, second]
  return Object.keys(OPERATOR_VERBS).some(verb => verb.split(' ').every((word, index) => words[index] === word))
}

/** Keeps compiled code for the next start. Another user who can write in its directory could run code as this user. */
function cacheCode() {
  try {
    const { XDG_CACHE_HOME = '' } = process.env
    // The XDG standard ignores relative paths, which lead into the directory of the caller.
    const caches = path.isAbsolute(XDG_CACHE_HOME) ? XDG_CACHE_HOME : path.join(homedir(), '.cache')
    const directory = path.join(caches, 'muster')
    mkdirSync(directory, { recursive: true, mode: 0o700 })
    const { mode, uid } = lstatSync(directory)
    // A symbolic link has all permissions. Windows has no user IDs.
    if (process.getuid && (uid !== process.getuid() || (mode & 0o022) !== 0)) return
    // Node 22 and later.
    module.enableCompileCache?.(directory)
  } catch {
    // Without a directory a start takes longer.
  }
}

/** @param {readonly string[]} args */
async function run(args) {
  if (args[0] === '--version' || args[0] === '-V') {
    const { version } = JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8'))
    // Opening the stream of stdout takes longer.
    return writeFileSync(1, `${version}\n`)
  }
  if (isOperatorVerb(args)) {
    if (Number(process.versions.node.split('.')[0]) < 24) {
      console.error(`muster: Node 24 or later is required, this is ${process.version}`)
      process.exit(1)
    }
    const { main } = await import('#operator/main.ts')
    const code = await main(args)
    // Whatever a successful command left open ends by itself.
    if (code !== 0) process.exit(code)
    return
  }
  const isCompletion = args[0] === '__complete'
  const bundle = new URL(`../cli/dist/${isCompletion ? 'complete' : 'main'}.js`, import.meta.url)
  if (!existsSync(bundle)) {
    console.error('muster: the command line is not built: run npm run build')
    process.exit(1)
  }
  if (!isCompletion) cacheCode()
  const { main } = await import(bundle.href)
  process.exit(await main(isCompletion ? args.slice(1) : args, OPERATOR_VERBS))
}

await run(process.argv.slice(2))
