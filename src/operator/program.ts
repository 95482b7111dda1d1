import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { Argument, Command, InvalidArgumentError, Option } from 'commander'
import { DRILL_NAMES, PROFILES } from '#local/drills/names.ts'
import { DATA_DIRECTORY } from './environment.ts'
import { CommandError, printProgress } from './output.ts'
import verbs from './verbs.json' with { type: 'json' }

/** The commands of the model double; null where it is not installed. */
const doubleCommand = existsSync(new URL('../local/double/command.ts', import.meta.url))
  ? (await import('#local/double/command.ts')).doubleCommand
  : null

function parsePositiveInteger(text: string): number {
  const value = Number(text)
  if (!/^\d+$/.test(text) || value < 1) throw new InvalidArgumentError('must be an integer of at least 1')
  return value
}

function parsePort(text: string): string {
  if (!/^\d+$/.test(text) || Number(text) > 65_535) throw new InvalidArgumentError('must be an integer from 0 to 65535')
  return text
}

function parseTime(text: string): Date {
  const value = new Date(/^\d{4}-\d{2}-\d{2}T[^Z+]*$/.test(text) ? `${text}Z` : text)
  if (!/^\d{4}-\d{2}-\d{2}/.test(text) || Number.isNaN(value.getTime()))
    throw new InvalidArgumentError('must be an ISO 8601 time, for example 2026-01-31 or 2026-01-31T08:00:00Z')
  return value
}

const collect = (value: string, previous: string[]): string[] => [...previous, value]

function collectReport(file: string, previous: string[]): string[] {
  if (!/\.(json|md)$/.test(file)) throw new InvalidArgumentError('must end with .json or .md')
  return [...previous, file]
}

const dataOption = () =>
  new Option('--data <directory>', 'directory of the database and secrets of up').default(DATA_DIRECTORY)

const cellOption = () => new Option('--cell <name>', 'cell to work on').default('home')

const examples = (...lines: [command: string, explanation: string][]): string => {
  const width = Math.max(...lines.map(([command]) => command.length))
  return `\nExamples:\n${lines.map(([command, text]) => `  $ ${command.padEnd(width)}  ${text}`).join('\n')}`
}

const withFilters = (command: Command) =>
  command
    .addOption(dataOption())
    .addOption(cellOption())
    .option('--project <id>', 'only this project')
    .option('--from <time>', 'only from this time', parseTime)
    .option('--to <time>', 'only up to this time', parseTime)
    .option('--limit <number>', 'maximum number', parsePositiveInteger)
    .option('--id <id>', 'only these IDs; repeatable', collect, [])
    .option('--dry-run', 'count only')
    .option('--json', 'print the result as JSON')

function rootCommand(): Command {
  return new Command('muster')
    .description('Self-hosted back end for AI agent applications on PostgreSQL alone.')
    .version(JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')).version)
    .showHelpAfterError('(run muster help for a list of commands)')
    .addHelpText(
      'after',
      `${examples(
        ['muster up', 'database, web, worker and a demo in one process'],
        ['muster doctor', 'find problems of this deployment'],
        ['muster help reprocess', 'details of a command'],
      )}

Commands use the database configured by DATABASE_URL (or DATABASE_HOST, ...), otherwise the embedded
database in --data. Exit codes: 0 success, 1 failure, 2 wrong usage.`,
    )
}

function addServerCommands(muster: Command): void {
  muster
    .command('up')
    .description(verbs.up)
    .addOption(dataOption())
    .option('--port <number>', 'port of the API, default PORT or 5047', parsePort)
    .option('--demo', 'create a demo project with a local test model; default outside production')
    .option('--no-demo', 'no demo project and no test model')
    .option('--sample', 'create a project with sample data of a support product, on the test model')
    .option('--json', 'print addresses and credentials as JSON')
    .addHelpText(
      'after',
      examples(
        ['muster up', 'on port 5047 with an embedded database in .data'],
        ['muster up --port 8080 --data /var/lib/muster', ''],
        ['DATABASE_URL=postgres://... muster up --no-demo', 'on an existing database'],
      ),
    )
    .action(async options => (await import('./up.ts')).startAll(options))

  muster
    .command('migrate')
    .description(verbs.migrate)
    .addOption(dataOption())
    .option('--json', 'print the result as JSON')
    .addHelpText('after', examples(['DATABASE_URL=postgres://... muster migrate', 'before a release']))
    .action(async options => (await import('./setup.ts')).migrateCommand(options))

  muster
    .command('bootstrap')
    .description(verbs.bootstrap)
    .addOption(dataOption())
    .addOption(new Option('--username <name>', 'name of the admin').env('ADMIN_USERNAME'))
    .option('--password <password>', 'password; default ADMIN_PASSWORD or a prompt')
    .option('--json', 'print the result as JSON')
    .addHelpText(
      'after',
      examples(
        ['muster bootstrap --username ada', 'prompts for the password'],
        ['ADMIN_PASSWORD=... muster bootstrap --username ada', ''],
      ),
    )
    .action(async options => (await import('./setup.ts')).bootstrapCommand(options))

  muster
    .command('init-env')
    .description(verbs['init-env'])
    .argument('[file]', 'environment file', '.env')
    .addHelpText('after', examples(['muster init-env', 'once, before docker compose up']))
    .action(async file => (await import('./init-env.ts')).initEnvCommand(file))

  muster
    .command('doctor')
    .description(verbs.doctor)
    .addOption(dataOption())
    .option('--json', 'print the checks as JSON')
    .addHelpText('after', `${examples(['muster doctor', 'exits 1 if a check fails'])}`)
    .action(async options => (await import('./doctor.ts')).runDoctor(options))

  addCellCommands(muster)

  muster
    .command('modules')
    .description(verbs.modules)
    .option('--json', 'print the names as JSON')
    .action(async options => (await import('./modules.ts')).modulesCommand(options))
}

function addCellCommands(muster: Command): void {
  const cells = muster
    .command('cells')
    .description(verbs.cells)
    .addHelpText(
      'after',
      examples(
        ['muster cells list', ''],
        ['CELL_URL=postgres://... muster cells add two', 'migrates the database, which is empty'],
        ['CELL_URL=postgres://... muster cells add three --schema muster_three', 'in a schema of a database'],
        ['CELL_URL=postgres://... muster cells move two', 'to an empty database, in use'],
        ['muster cells check', 'exits 1 if a check fails'],
        ['muster cells remove two', 'after the loss of its server'],
        ['muster cells projects move proj_... --to two', 'while it is in use'],
      ),
    )
  const command = (name: string, description: string) =>
    cells.command(name).description(description).addOption(dataOption()).option('--json', 'print the result as JSON')
  command('list', 'list the cells with their address, state and size').action(async options =>
    (await import('./cells.ts')).listCommand(options),
  )
  command('add', 'migrate a database and make it a cell; can be repeated after a failure')
    .argument('<name>')
    .option('--url <url>', 'URL of the database; default CELL_URL, which other users of this machine cannot read')
    .option('--schema <name>', 'schema of the cell in that database')
    .action(async (name, options) => (await import('./cells.ts')).addCommand(name, options))
  command('check', 'check connections, migrations, version and clock of the cells; exits 1 if a check fails')
    .argument('[name]', 'only this cell')
    .action(async (name, options) => (await import('./cells.ts')).checkCommand(name, options))
  command('close', 'put no new projects in a cell')
    .argument('<name>')
    .action(async (name, options) => (await import('./cells.ts')).stateCommand(name, 'closed', options))
  command('open', 'put new projects in a cell again')
    .argument('<name>')
    .action(async (name, options) => (await import('./cells.ts')).stateCommand(name, 'open', options))
  command('move', 'move a cell to an empty database while it is in use; can be repeated after an interruption')
    .argument('<name>')
    .option('--url <url>', 'URL of the database; default CELL_URL, which other users of this machine cannot read')
    .option('--schema <name>', 'schema of the cell in that database')
    .option('--cancel', 'end a move that was interrupted: the cell continues where it was')
    .action(async (name, options) => (await import('./cells.ts')).moveCommand(name, options))
  command('remove', 'take a cell down and copy nothing to it, also if it does not answer; add restores it')
    .argument('<name>')
    .option('--force', 'also if it answers and has projects')
    .action(async (name, options) => (await import('./cells.ts')).removeCommand(name, options))
  const projects = command('projects', 'list the projects of the cells, with what has been counted of them')
    .argument('[name]', 'only of this cell')
    .action(async (name, options) => (await import('./cells-projects.ts')).projectsCommand(name, options))
  projects
    .command('move')
    .description('move a project to another cell; can be repeated after a failure')
    .argument('<project>', 'ID of the project')
    .requiredOption('--to <name>', 'cell that gets it; its cell of before ends a move that has taken nothing yet')
    .addOption(dataOption())
    .option('--json', 'print the result as JSON')
    .action(async (id, _options, self) => (await import('./cells-projects.ts')).moveCommand(id, self.optsWithGlobals()))
}

function addReprocessCommands(muster: Command): void {
  const reprocess = muster
    .command('reprocess')
    .description(verbs.reprocess)
    .addHelpText(
      'after',
      examples(
        ['muster reprocess deliveries --from 2026-01-31 --dry-run', 'count failed deliveries since a date'],
        ['muster reprocess generations', 'wake orphaned turns'],
        ['muster reprocess runs --dry-run', 'count orphaned orchestration runs'],
        ['muster reprocess work --kind export.build', 'wake orphaned exports'],
        ['muster reprocess firings --from 2026-01-31 --dry-run', 'count failed trigger firings since a date'],
        ['muster reprocess ingestions --dry-run', 'count failed ingestions'],
        ['muster reprocess embeddings --missing', 'embed chunks without vectors'],
        ['muster reprocess usage --dry-run', 'compare usage totals with usage events'],
        ['muster reprocess dead-letters list', ''],
        ['muster reprocess dead-letters replay --queue conversation.process', ''],
      ),
    )
  withFilters(reprocess.command('deliveries'))
    .description('resend webhook deliveries as new deliveries, unless they were already resent')
    .option('--webhook <id>', 'only this webhook')
    .addOption(
      new Option('--status <status>', 'outcome of the delivery').choices(['failed', 'completed']).default('failed'),
    )
    .action(async options => (await import('./reprocess.ts')).reprocessDeliveries(options))
  withFilters(reprocess.command('generations'))
    .description('wake turns that have not ended and have no message')
    .addOption(new Option('--status <status>', 'only this status').choices(['pending', 'in_progress']))
    .action(async options => (await import('./reprocess.ts')).reprocessGenerations(options))
  withFilters(reprocess.command('runs'))
    .description('wake orchestration runs that can advance and have no message')
    .action(async options => (await import('./reprocess.ts')).reprocessRuns(options))
  reprocess
    .command('work')
    .description('wake overdue items of durable work that have no message')
    .addOption(dataOption())
    .addOption(cellOption())
    .option('--kind <name>', 'only this kind, for example export.build')
    .option('--limit <number>', 'maximum number', parsePositiveInteger)
    .option('--dry-run', 'count only')
    .option('--json', 'print the result as JSON')
    .action(async options => (await import('./reprocess.ts')).reprocessWork(options))
  withFilters(reprocess.command('firings'))
    .description('repeat failed trigger firings with the same input, or wake orphaned pending ones')
    .option('--trigger <id>', 'only this trigger')
    .addOption(new Option('--status <status>', 'state of the firings').choices(['failed', 'pending']).default('failed'))
    .action(async options => (await import('./reprocess.ts')).reprocessFirings(options))

  withFilters(reprocess.command('ingestions'))
    .description('ingest documents again in a worker, newest first, with the permissions of the first admin')
    .addOption(
      new Option('--status <status>', 'status of the documents').choices(['failed', 'ready']).default('failed'),
    )
    .action(async options => (await import('./reprocess.ts')).reprocessIngestions(options))
  withFilters(reprocess.command('embeddings'))
    .description('embed documents again with the configured model, newest first; they stay searchable meanwhile')
    .option('--missing', 'only documents with a chunk without a vector of this model')
    .action(async options => (await import('./reprocess.ts')).reprocessEmbeddings(options))
  reprocess
    .command('usage')
    .description('recompute usage totals, by day and project, that differ from the usage events')
    .addOption(dataOption())
    .addOption(cellOption())
    .option('--project <id>', 'only this project')
    .option('--from <time>', 'only from this time', parseTime)
    .option('--to <time>', 'only up to this time', parseTime)
    .option('--limit <number>', 'maximum number of days', parsePositiveInteger)
    .option('--dry-run', 'count only')
    .option('--json', 'print the result as JSON')
    .action(async options => (await import('./reprocess.ts')).reprocessUsage(options))
  withFilters(reprocess.command('memory'))
    .description('recompute hashes, search words and vectors of memories, newest first')
    .option('--missing', 'only memories without a vector of the configured model')
    .action(async options => (await import('./reprocess.ts')).reprocessMemory(options))
  addDeadLetterCommands(reprocess)
}

function addDeadLetterCommands(reprocess: Command): void {
  const deadLetters = reprocess.command('dead-letters').description('manage messages that failed on every attempt')
  deadLetters
    .command('list')
    .description('list dead letters, newest first')
    .addOption(dataOption())
    .addOption(cellOption())
    .option('--queue <name>', 'only this queue')
    .option('--limit <number>', 'maximum number, default 100', parsePositiveInteger)
    .option('--json', 'print the result as JSON')
    .action(async options => (await import('./dead-letters.ts')).listDeadLetters(options))
  deadLetters
    .command('inspect')
    .description('print a dead letter with its data and last error')
    .argument('<id>')
    .addOption(dataOption())
    .addOption(cellOption())
    .action(async (id, options) => (await import('./dead-letters.ts')).inspectDeadLetter(id, options))
  withFilters(deadLetters.command('replay'))
    .description('move dead letters back to their queues, oldest first')
    .option('--queue <name>', 'only this queue')
    .action(async options => (await import('./dead-letters.ts')).replayDeadLetters(options))
}

function addMaintenanceCommands(muster: Command): void {
  const secrets = muster.command('secrets').description('manage the encryption of stored secrets')
  secrets
    .command('verify')
    .description(verbs['secrets verify'])
    .addOption(dataOption())
    .option('--json', 'print the result as JSON')
    .action(async options => (await import('./keys.ts')).verifyCommand(options))
  secrets
    .command('reencrypt')
    .description(verbs['secrets reencrypt'])
    .addOption(dataOption())
    .option('--json', 'print the result as JSON')
    .action(async options => (await import('./keys.ts')).reencryptCommand(options))

  muster
    .command('oauth')
    .description('manage the OAuth authorization server')
    .command('rotate-keys')
    .description(verbs['oauth rotate-keys'])
    .addOption(dataOption())
    .option('--json', 'print the ID of the key as JSON')
    .action(async options => (await import('./keys.ts')).rotateKeysCommand(options))

  muster
    .command('settings')
    .description(verbs.settings)
    .option('--markdown', 'print the table of docs/operations.md')
    .option('--write <file>', 'write that table between the markers of a file')
    .option('--env [file]', 'print an example environment file, or write it to a file')
    .option('--json', 'print the settings as JSON')
    .action(async options => (await import('./settings.ts')).settingsCommand(options))

  muster
    .command('docs')
    .description(verbs.docs)
    .command('export')
    .description('write the pages of /docs as files with relative links, for any web server')
    .argument('<directory>', 'directory to write to')
    .action(async directory => (await import('./docs.ts')).exportDocsCommand(directory))

  muster
    .command('drill')
    .description(verbs.drill)
    .addArgument(new Argument('<name>', 'drill of docs/drills.md').choices(DRILL_NAMES))
    .option('--url <url>', 'deployment to run against, with the token of an admin in MUSTER_TOKEN; default a new one')
    .option('--host <address>', 'address at which that deployment reaches this machine', '127.0.0.1')
    .addOption(
      new Option('--profile <name>', 'nightly: ten times the load of short').choices(PROFILES).default(PROFILES[0]),
    )
    .option('--seconds <number>', 'duration of the load, in place of the profile', parsePositiveInteger)
    .option('--out <file>', 'write the report to a .json or .md file; repeatable', collectReport, [])
    .option('--json', 'print the report as JSON')
    .addHelpText(
      'after',
      examples(
        ['muster drill kill', 'on an embedded database'],
        ['DATABASE_URL=postgres://... muster drill rolling', 'on a new database of this server'],
        ['muster drill receiver-down --seconds 120 --out report.json', 'longer, with a report'],
        ['MUSTER_TOKEN=... muster drill vendor-down --url https://staging.example --host 10.0.0.7', ''],
      ),
    )
    .action(async (name, options) => {
      if (doubleCommand) return (await import('./drill.ts')).drillCommand(name, options)
      printProgress('muster: a drill needs the model double, which only a checkout has')
      process.exitCode = 2
    })

  muster
    .command('bench')
    .description(verbs.bench)
    .argument('[arguments...]', 'arguments of test/bench/run.ts')
    .allowUnknownOption()
    .helpOption(false)
    .action(runBenchmarks)
}

/** Creates the `muster` command line. Usage errors are thrown as CommanderError, other errors unchanged. */
export function program(): Command {
  const muster = rootCommand()
  addServerCommands(muster)
  addReprocessCommands(muster)
  addMaintenanceCommands(muster)
  addDoubleCommands(muster)
  throwOnUsageErrors(muster)
  return muster
}

function addDoubleCommands(muster: Command): void {
  if (doubleCommand) muster.addCommand(doubleCommand().description(verbs['llm-double']))
  else
    muster
      .command('llm-double')
      .description(verbs['llm-double'])
      .argument('[arguments...]')
      .allowUnknownOption()
      .helpOption(false)
      .action(() => {
        throw new CommandError('the model double is not installed: only a checkout has it')
      })
}

/** Makes a command and its subcommands throw instead of ending the process. */
function throwOnUsageErrors(command: Command): void {
  command.exitOverride()
  for (const child of command.commands) throwOnUsageErrors(child)
}

/** `muster bench`: runs the benchmarks of the checkout and adopts their exit code. */
async function runBenchmarks(args: string[]): Promise<void> {
  const file = fileURLToPath(new URL('../../test/bench/run.ts', import.meta.url))
  if (!existsSync(file))
    throw new CommandError(
      'the benchmarks are not installed: this package has no test files',
      'Clone the repository, then run npm install and npm run bench.',
    )
  const child = spawn(process.execPath, [file, ...args], { stdio: 'inherit' })
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => child.kill(signal))
  const [code] = await once(child, 'exit')
  process.exitCode = code ?? 1
}
