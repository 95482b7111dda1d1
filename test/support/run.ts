/**
 * The test command. Without arguments: type check, lint, dependency rules, then every test file. With arguments (test
 * files and options of mocha) only these tests. The last line printed is the totals; a step that fails counts as one
 * failed test.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { startServer } from './postgres.ts'
import type { Totals } from './reporter.ts'

const root = path.resolve(import.meta.dirname, '../..')
const LIMIT_MS = 45 * 60_000
const bin = path.join(root, 'node_modules/.bin')
const env: NodeJS.ProcessEnv = { ...process.env, PATH: `${bin}${path.delimiter}${process.env.PATH}` }
// Tests name their databases; a deployment's address in the environment must not reach them.
delete env.DATABASE_URL

let current: ChildProcess | undefined
let interrupted = false

/** Runs a program to its end, at most LIMIT_MS; returns whether it exited with 0. */
async function succeeds(program: string, args: string[], environment = env): Promise<boolean> {
  if (interrupted) return false
  const child = spawn(program, args, { cwd: root, env: environment, stdio: 'inherit' })
  current = child
  const timer = setTimeout(() => child.kill('SIGKILL'), LIMIT_MS)
  const code = await new Promise(resolve => {
    child.once('error', resolve)
    child.once('close', resolve)
  })
  clearTimeout(timer)
  return code === 0
}

/** Runs a script of package.json; returns the number of failures, 0 or 1. */
async function check(script: string): Promise<number> {
  const { scripts } = JSON.parse(fs.readFileSync(path.join(root, 'package.json'), 'utf8'))
  console.log(`${script}: ${scripts[script]}`)
  const [program, ...args] = scripts[script].split(' ')
  return (await succeeds(path.join(bin, program), args)) ? 0 : 1
}

/** Runs mocha; a run that ends badly without a failed test (a crash, a file that does not load) counts as one. */
async function test(args: string[], databaseUrl: string): Promise<Totals> {
  const file = path.join(tmpdir(), `muster-totals-${process.pid}.json`)
  const mocha = path.join(root, 'node_modules/mocha/bin/mocha.js')
  const options = ['--parallel', '--jobs', '2', '--exit', '--reporter', path.join(root, 'test/support/reporter.ts')]
  const environment = { ...env, TEST_DATABASE_URL: databaseUrl, TEST_TOTALS: file }
  const passed = await succeeds(process.execPath, [mocha, ...options, ...args], environment)
  const totals: Totals = fs.existsSync(file)
    ? JSON.parse(fs.readFileSync(file, 'utf8'))
    : { passed: 0, failed: 0, skipped: 0 }
  fs.rmSync(file, { force: true })
  if (!passed) totals.failed ||= 1
  return totals
}

for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.on(signal, () => {
    interrupted = true
    current?.kill(signal)
  })
}

const args = process.argv.slice(2)
let failed = 0
if (!args.length) for (const script of ['typecheck', 'lint', 'deps']) failed += await check(script)

let totals: Totals = { passed: 0, failed: 1, skipped: 0 }
try {
  const server = process.env.TEST_DATABASE_URL ? undefined : await startServer()
  try {
    const complete = args.length ? [] : ['--forbid-only', '--fail-zero']
    const files = args.some(arg => arg.endsWith('.test.ts')) ? [] : ['test/**/*.test.ts']
    totals = await test([...complete, ...args, ...files], server?.url ?? process.env.TEST_DATABASE_URL!)
  } finally {
    await server?.stop()
  }
} catch (error) {
  console.error(error)
}

failed += totals.failed
const skipped = totals.skipped ? `, ${totals.skipped} skipped` : ''
console.log(`${totals.passed} passed, ${failed} failed${skipped}`)
process.exitCode = failed ? 1 : 0
