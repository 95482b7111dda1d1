/**
 * The test command. Without arguments: type check, lint, dependency rules, then every test file. With arguments (test
 * files and options of mocha) only these tests. `--in-process` runs the workers that tests start inside the process of
 * the test, which is faster; `--installed-browser` takes a browser of this machine in place of the packed one;
 * `--nightly` repeats random tests for hours. `--postgres DIR` runs the tests of other-postgres.ts, or those given, on a server
 * with the programs in DIR. `--cells` makes every other project of tests in a second cell, with TEST_CELLS=second all; the cell is a schema of the
 * database, with `--servers` a database of a second server. `--pooler` puts PgBouncer in transaction mode before the server. `--spans` exports every span of every
 * process to a collector, and fails if one has a canary (canaries.ts). A complete run runs files with a failed test once more,
 * alone, and names those that pass then; it fails where no test received an event that a stream declares. The last line printed
 * is the totals; a step that fails counts as one failed test.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import fs from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { pathToFileURL } from 'node:url'
import { EXCLUDED } from './cells-profile.ts'
import { isDriven } from './client-driver.ts'
import { type Collector, startCollector } from './collector.ts'
import { PROFILE, startOther } from './other-postgres.ts'
import { type Pooler, startPoolerOfTests } from './pooler.ts'
import { startServer } from './postgres.ts'
import { LASTING_FLAGS } from './processes.ts'
import type { FileTotals, Totals } from './reporter.ts'
import { type FileTime, processorTime } from './timing.ts'

const root = path.resolve(import.meta.dirname, '../..')
const LIMIT_MS = (process.argv.includes('--nightly') ? 10 : 1) * 90 * 60_000
const SLOWEST = 20
/** What every file of the last run took, a JSON object each line; of the slowest ones the report is printed. */
const TIMES_FILE = path.join(root, 'node_modules/.cache/test-times.jsonl')
/** Concurrent files: two more than the cores of the smallest machine, because tests wait for half of their time. */
const JOBS = 4
/** Tests with a separate collector, or without one. */
const TELEMETRY = /^test\/core\/telemetry/
/** More failed files than these are not the odd test that met a bad moment: nothing is run again. */
const AGAIN_MAX = 10

/** Files that take longest, in this order before all others: started last, one would keep a core idle at the end. */
const FIRST = [
  'test/work/crash-matrix.test.ts',
  'test/jobs/ingestion.test.ts',
  'test/core/cell-moves.test.ts',
  'test/core/project-moves.test.ts',
  'test/formations/crash.test.ts',
  'test/automation/crash-matrix.test.ts',
  'test/vendors/matrix.test.ts',
  'test/jobs/connection-resets.test.ts',
  'test/core/pairs.test.ts',
  'test/core/cell-copies.test.ts',
  'test/jobs/silent-connections.test.ts',
  'test/execution/attachments-memory.test.ts',
  'test/execution/durable.test.ts',
  'test/execution/memory-rules-durable.test.ts',
  'test/core/fuzz.test.ts',
  'test/identity/users.test.ts',
  'test/execution/trace-files.test.ts',
  'test/automation/run-workers.test.ts',
  'test/jobs/delivery.test.ts',
  'test/execution/decisions-durable.test.ts',
  'test/core/queue.test.ts',
  'test/conversation/turns.test.ts',
  'test/bin/docs.test.ts',
  'test/bin/muster.test.ts',
  'test/automation/executions-crash.test.ts',
  'test/automation/tasks-crash.test.ts',
  'test/automation/triggers-durable.test.ts',
  'test/content/uploads-memory.test.ts',
  'test/bin/processes.test.ts',
  'test/automation/run-trees.test.ts',
  'test/control/audit.test.ts',
  'test/core/health.test.ts',
  'test/core/silent-names.test.ts',
  'test/execution/agent-releases.test.ts',
  'test/execution/approvals-crash.test.ts',
  'test/execution/loop-crashes.test.ts',
  'test/content/chunks.test.ts',
  'test/content/extract.test.ts',
  'test/mcp/tasks.test.ts',
  'test/core/remote-bodies.test.ts',
  'test/formations/random.test.ts',
  'test/jobs/fairness.test.ts',
  'test/bin/up.test.ts',
  'test/bin/contributing.test.ts',
  'test/surfaces/docs.test.ts',
  'test/surfaces/description.test.ts',
  'test/work/quarantine.test.ts',
]

const bin = path.join(root, 'node_modules/.bin')
const env: NodeJS.ProcessEnv = { ...process.env, PATH: `${bin}${path.delimiter}${process.env.PATH}` }
// Processes that tests start compile the same modules: the cache saves half of the processor time in which a worker is
// ready.
env.NODE_COMPILE_CACHE ??= path.join(root, 'node_modules/.cache/compile')
// As bin/launch has it: a sixth less, as no module's path is looked up for links.
env.NODE_OPTIONS = [env.NODE_OPTIONS, '--preserve-symlinks'].filter(Boolean).join(' ')
const support = (name: string) => path.join(root, 'test/support', name)
// Tests name their databases; a deployment's address in the environment must not reach them.
delete env.DATABASE_URL

const running = new Set<ChildProcess>()
let interrupted = false

/**
 * Runs a program to its end, at most LIMIT_MS; returns whether it exited with 0. `print` gets its output, at the end.
 */
async function succeeds(
  program: string,
  args: string[],
  {
    environment = env,
    print,
    shell = false,
  }: { environment?: NodeJS.ProcessEnv; print?: (text: string) => void; shell?: boolean } = {},
): Promise<boolean> {
  if (interrupted) return false
  const child = spawn(program, args, { cwd: root, env: environment, stdio: print ? 'pipe' : 'inherit', shell })
  running.add(child)
  let printed = ''
  for (const stream of [child.stdout, child.stderr]) stream?.on('data', part => (printed += part))
  const timer = setTimeout(() => child.kill('SIGKILL'), LIMIT_MS)
  const code = await new Promise(resolve => {
    child.once('error', resolve)
    child.once('close', resolve)
  })
  clearTimeout(timer)
  running.delete(child)
  print?.(printed)
  return code === 0
}

/** Bundles the programs that tests start; without, a test that starts one reports the problems of its modules. */
async function bundlePrograms(): Promise<void> {
  if (await succeeds(process.execPath, [support('bundle.ts')], { print: () => {} }))
    env.NODE_OPTIONS += ` --import ${pathToFileURL(support('bundled.ts'))}`
}

/** Runs a script of package.json and prints its output; returns its name if it fails. */
async function check(script: string): Promise<string[]> {
  const { scripts } = JSON.parse(fs.readFileSync(path.join(root, 'package.json'), 'utf8'))
  const print = (text: string) => console.log(`${script}: ${scripts[script]}\n${text}`.trimEnd())
  return (await succeeds(scripts[script], [], { print, shell: true })) ? [] : [script]
}

/** Every test file, slow ones first; with `--cells` without those about one database. */
function allFiles(): string[] {
  const found = fs.globSync('test/**/*.test.ts', { cwd: root }).sort()
  const files = env.TEST_CELLS ? found.filter(file => !(file in EXCLUDED)) : found
  return [...new Set([...FIRST.filter(file => files.includes(file)), ...files])]
}

/**
 * Writes what each file took; prints the files that took most processor time, which is what bounds a run, the slowest
 * tests, and the processor time of all.
 */
function report(files: FileTotals, times: FileTime[], serverMs: number): void {
  if (times.length > 0) fs.writeFileSync(TIMES_FILE, times.map(time => `${JSON.stringify(time)}\n`).join(''))
  const seconds = (ms: number) => `${(ms / 1000).toFixed(1)} s`.padStart(8)
  console.log('files with most processor time (without the database; wall time; of that outside tests):')
  for (const { file, ms, cpuMs } of [...times].sort((a, b) => b.cpuMs - a.cpuMs).slice(0, SLOWEST)) {
    const inTests = Object.values(files[file]?.tests ?? {}).reduce((sum, each) => sum + each, 0)
    console.log(`${seconds(cpuMs)} ${seconds(ms)} ${seconds(ms - inTests)}  ${file}`)
  }
  console.log('slowest tests:')
  const tests = Object.entries(files).flatMap(([file, { tests }]) =>
    Object.entries(tests).map(([title, ms]) => ({ file, title, ms })),
  )
  for (const { file, title, ms } of tests.sort((a, b) => b.ms - a.ms).slice(0, SLOWEST))
    console.log(`${seconds(ms)}  ${file}: ${title}`)
  const cpuMs = times.reduce((sum, time) => sum + time.cpuMs, 0)
  console.log(`processor time: tests ${seconds(cpuMs).trim()}, database ${seconds(serverMs).trim()}`)
}

/** Prints what a collector of all spans found; returns the number of failures, 0 or 1. */
function checkSpans({ count, leaks, problems }: Collector): number {
  console.log(`spans: ${count} exported, ${leaks.length} with a canary`)
  for (const line of new Set([...leaks, ...problems])) console.log(indented(line))
  return count === 0 || leaks.length + problems.length > 0 ? 1 : 0
}

/** Prints each failure once more, in short: in a long run they are far from each other, between the lines of other files. */
function reportFailures(files: FileTotals): void {
  for (const [file, { failures }] of Object.entries(files))
    for (const [title, message] of Object.entries(failures))
      console.log(`failed: ${file}: ${title}\n${indented(message)}`)
}

const indented = (text: string): string => text.replace(/^/gm, '    ')

/**
 * Runs mocha; a run that ends badly without a failed test (a crash, a file that does not load) counts as one. Always
 * with several jobs: with one, mocha loads the files by `require`, which takes no module with a top-level await.
 */
async function test(args: string[], databaseUrl: string): Promise<{ files: FileTotals; times: FileTime[] }> {
  const file = path.join(tmpdir(), `muster-totals-${process.pid}.json`)
  const timesFile = path.join(tmpdir(), `muster-times-${process.pid}.json`)
  const mocha = path.join(root, 'node_modules/mocha/bin/mocha.js')
  const options = ['--parallel', '--jobs', String(JOBS), '--exit', '--reporter', support('reporter.ts')]
  options.push('--require', support('timing.ts'), '--require', support('client-driver.ts'))
  const environment = { ...env, TEST_DATABASE_URL: databaseUrl, TEST_TOTALS: file, TEST_TIMES: timesFile }
  const passed = await succeeds(process.execPath, [...LASTING_FLAGS, mocha, ...options, ...args], { environment })
  const files: FileTotals = fs.existsSync(file) ? JSON.parse(fs.readFileSync(file, 'utf8')) : {}
  const lines = fs.existsSync(timesFile) ? fs.readFileSync(timesFile, 'utf8').trim().split('\n') : []
  for (const name of [file, timesFile]) fs.rmSync(name, { force: true })
  if (!passed && failedIn(files).length === 0) files[''] = { passed: 0, failed: 1, skipped: 0, tests: {}, failures: {} }
  return { files, times: lines.map(line => JSON.parse(line)) }
}

const processorTimeOf = (servers: readonly ({ pid: number } | null | undefined)[]): number =>
  servers.reduce((sum, server) => sum + (server ? processorTime(server.pid) : 0), 0)

const failedIn = (files: FileTotals): string[] => Object.keys(files).filter(file => files[file].failed > 0)

const sum = (files: FileTotals): Totals =>
  Object.values(files).reduce(
    (all, { passed, failed, skipped }) => ({
      passed: all.passed + passed,
      failed: all.failed + failed,
      skipped: all.skipped + skipped,
    }),
    { passed: 0, failed: 0, skipped: 0 },
  )

/**
 * Every test file; the few with failed tests once more, when nothing else runs. What passes only then is named: it
 * depends on the moment, which is a fault of the test or of the product.
 */
async function testAll(databaseUrl: string): Promise<{ files: FileTotals; times: FileTime[]; flaky: FileTotals }> {
  const first = await test(['--forbid-only', '--fail-zero', ...allFiles()], databaseUrl)
  const again = failedIn(first.files)
  if (interrupted || again.length === 0 || again.length > AGAIN_MAX || again.includes(''))
    return { ...first, flaky: {} }
  console.log(`failed, and run once more: ${again.join(', ')}`)
  reportFailures(first.files)
  const files = { ...first.files }
  const flaky: FileTotals = {}
  for (const file of again) {
    const second = await test(['--forbid-only', file], databaseUrl)
    Object.assign(files, second.files)
    if (failedIn(second.files).length === 0) flaky[file] = first.files[file]
  }
  return { files, times: first.times, flaky }
}

/** Names the events of streams that operations declare and no test received; returns the number of failures, 0 or 1. */
async function checkStreams(framesFile: string): Promise<number> {
  const { loadModules } = await import('#core/modules/module.ts')
  const { modules } = await import('#modules.ts')
  const { neverReceived } = await import('./frames.ts')
  loadModules(modules)
  const missing = neverReceived(framesFile)
  fs.rmSync(framesFile, { force: true })
  if (missing.length > 0) console.log(`events of streams that no test received: ${missing.join(', ')}`)
  return missing.length > 0 ? 1 : 0
}

for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.on(signal, () => {
    interrupted = true
    for (const child of running) child.kill(signal)
  })
}

const SWITCHES: Record<string, string> = {
  '--in-process': 'TEST_IN_PROCESS',
  '--installed-browser': 'TEST_INSTALLED_BROWSER',
  '--nightly': 'TEST_NIGHTLY',
  '--servers': 'TEST_CELL_SERVERS',
}
const hasServers = process.argv.includes('--servers')
if (hasServers || process.argv.includes('--cells')) env.TEST_CELLS ??= 'alternate'
const hasPooler = process.argv.includes('--pooler')
const args = process.argv.slice(2).filter(arg => !(arg in SWITCHES) && arg !== '--cells' && arg !== '--pooler')
const [, otherServer] = args.includes('--postgres') ? args.splice(args.indexOf('--postgres'), 2) : []
if (otherServer && !args.some(arg => arg.endsWith('.test.ts'))) args.push(...PROFILE)
for (const [option, name] of Object.entries(SWITCHES)) if (process.argv.includes(option)) env[name] = 'true'
const collector = args.includes('--spans') ? await startCollector({ keeps: false }) : null
if (collector) {
  args.splice(args.indexOf('--spans'), 1)
  env.TEST_SPANS = collector.url
  if (!args.some(arg => arg.endsWith('.test.ts'))) args.push(...allFiles().filter(file => !TELEMETRY.test(file)))
}
const framesFile = path.join(tmpdir(), `muster-frames-${process.pid}.txt`)
if (args.length === 0) env.TEST_FRAMES = framesFile
const usesClient =
  args.length === 0 ||
  args.some(arg => !arg.endsWith('.test.ts') || /^test\/(client|console)\//.test(arg) || isDriven(arg))
if (usesClient && !(await succeeds(process.execPath, ['scripts/build.ts'])))
  console.log('npm run build failed; after a change of packages, run npm ci first')
const checks = Promise.all(args.length ? [] : ['typecheck', 'lint', 'deps'].map(check))

let pooler: Pooler | null = null
let totals: Totals = { passed: 0, failed: 1, skipped: 0 }
try {
  const prepared = bundlePrograms()
  const start = () => (otherServer ? startOther(path.resolve(otherServer)) : startServer({ replicates: hasServers }))
  const server = process.env.TEST_DATABASE_URL ? undefined : await start()
  const second =
    hasServers && !env.TEST_CELL_DATABASE_URL ? await startServer({ name: 'second', replicates: true }) : null
  if (second) env.TEST_CELL_DATABASE_URL = second.url
  await prepared
  try {
    const url = server?.url ?? process.env.TEST_DATABASE_URL!
    pooler = hasPooler ? await startPoolerOfTests(url) : null
    if (pooler) env.TEST_POOLER = String(pooler.port)
    const some = args.some(arg => arg.endsWith('.test.ts')) ? args : [...args, ...allFiles()]
    const result = args.length ? { ...(await test(some, url)), flaky: {} } : await testAll(url)
    totals = sum(result.files)
    if (args.length === 0) totals.failed += await checkStreams(framesFile)
    if (collector) totals.failed += checkSpans(collector)
    if (args.length === 0) reportFailures(result.files)
    report(result.files, result.times, processorTimeOf([server, second]))
    const flaky = Object.keys(result.flaky)
    if (flaky.length > 0) {
      console.log(`${flaky.length} flaky, passed only when run again: ${flaky.join(', ')}`)
      reportFailures(result.flaky)
    }
  } finally {
    await pooler?.stop()
    await Promise.all([server?.stop(), second?.stop()])
  }
} catch (error) {
  console.error(error)
}

const failedChecks = (await checks).flat()
if (failedChecks.length > 0) console.log(`failed: ${failedChecks.join(', ')}`)
const failed = totals.failed + failedChecks.length
const skipped = totals.skipped ? `, ${totals.skipped} skipped` : ''
console.log(`${totals.passed} passed, ${failed} failed${skipped}`)
process.exitCode = failed ? 1 : 0
