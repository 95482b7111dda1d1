import { readFileSync } from 'node:fs'
import { Command, InvalidArgumentError, Option } from 'commander'
import { doubleCommand } from '../local/double/command.ts'
import { DATA_DIRECTORY } from './environment.ts'

/** A whole number of at least 1. */
function positive(text: string): number {
  const value = Number(text)
  if (!/^\d+$/.test(text) || value < 1) throw new InvalidArgumentError('must be an integer of at least 1')
  return value
}

function port(text: string): string {
  if (!/^\d+$/.test(text) || Number(text) > 65_535) throw new InvalidArgumentError('must be an integer from 0 to 65535')
  return text
}

function time(text: string): Date {
  const value = new Date(/^\d{4}-\d{2}-\d{2}T[^Z+]*$/.test(text) ? `${text}Z` : text)
  if (!/^\d{4}-\d{2}-\d{2}/.test(text) || Number.isNaN(value.getTime()))
    throw new InvalidArgumentError('must be an ISO 8601 time, for example 2026-01-31 or 2026-01-31T08:00:00Z')
  return value
}

const several = (value: string, before: string[]): string[] => [...before, value]

const data = () => new Option('--data <directory>', 'where up keeps its database and secrets').default(DATA_DIRECTORY)

const examples = (...lines: [command: string, what: string][]): string => {
  const width = Math.max(...lines.map(([command]) => command.length))
  return `\nExamples:\n${lines.map(([command, what]) => `  $ ${command.padEnd(width)}  ${what}`).join('\n')}`
}

/** The `muster` command line. Usage errors are thrown as CommanderError; everything else as it fails. */
export function program(): Command {
  const muster = new Command('muster')
    .description('Self-hosted back end for AI agent applications on PostgreSQL alone.')
    .version(JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')).version)
    .showHelpAfterError('(muster help shows what there is)')
    .addHelpText(
      'after',
      `${examples(
        ['muster up', 'database, web, worker and a demo, in one process'],
        ['muster doctor', 'what is wrong with this deployment'],
        ['muster help reprocess', 'more about a command'],
      )}

Every command works on the database that DATABASE_URL (or DATABASE_HOST, ...) names, else on the
one that up keeps in --data. Exit codes: 0 done, 1 failed, 2 wrong usage.`,
    )

  muster
    .command('up')
    .description('run everything: database unless DATABASE_URL names one, web, worker and a demo')
    .addOption(data())
    .option('--port <number>', 'port of the API; default PORT, else 5047', port)
    .option('--demo', 'with a demo project on a model that answers without a vendor; default outside production')
    .option('--no-demo', 'without the demo project and its model')
    .option('--json', 'print what runs as JSON')
    .addHelpText(
      'after',
      examples(
        ['muster up', 'on port 5047 with its own database in .data'],
        ['muster up --port 8080 --data /var/lib/muster', ''],
        ['DATABASE_URL=postgres://... muster up --no-demo', 'on a database of yours'],
      ),
    )
    .action(async options => (await import('./up.ts')).startAll(options))

  muster
    .command('migrate')
    .description('bring the database to this version; waits while another process migrates')
    .addOption(data())
    .option('--json', 'print the result as JSON')
    .addHelpText('after', examples(['DATABASE_URL=postgres://... muster migrate', 'before a release']))
    .action(async options => (await import('./migrate.ts')).migrateCommand(options))

  muster
    .command('bootstrap')
    .description('make the first admin')
    .addOption(data())
    .addOption(new Option('--username <name>', 'name of the admin').env('ADMIN_USERNAME'))
    .option('--password <password>', 'read from ADMIN_PASSWORD or a prompt when left out')
    .option('--json', 'print the result as JSON')
    .addHelpText(
      'after',
      examples(
        ['muster bootstrap --username ada', 'asks for the password'],
        ['ADMIN_PASSWORD=... muster bootstrap --username ada', ''],
      ),
    )
    .action(async options => (await import('./bootstrap.ts')).bootstrapCommand(options))

  muster
    .command('doctor')
    .description('check configuration, database, queues, workers, keys and clock')
    .addOption(data())
    .option('--json', 'print the checks as JSON')
    .addHelpText('after', `${examples(['muster doctor', 'exits 1 when a check fails'])}`)
    .action(async options => (await import('./doctor.ts')).runDoctor(options))

  muster
    .command('modules')
    .description('what this release brings: modules, operations, queues, events and more, by name')
    .option('--json', 'print the names as JSON')
    .action(async options => (await import('./modules.ts')).modulesCommand(options))

  const reprocess = muster
    .command('reprocess')
    .description('do failed or forgotten work again')
    .addHelpText(
      'after',
      examples(
        ['muster reprocess deliveries --from 2026-01-31 --dry-run', 'how many failed since'],
        ['muster reprocess generations', 'wake turns that nobody works on'],
        ['muster reprocess runs --dry-run', 'how many runs of orchestrations nobody works on'],
        ['muster reprocess firings --from 2026-01-31 --dry-run', 'how many firings of triggers failed since'],
        ['muster reprocess ingestions --dry-run', 'how many files could not be read'],
        ['muster reprocess embeddings --missing', 'embed what has no vectors'],
        ['muster reprocess usage --dry-run', 'whether sums and events agree'],
        ['muster reprocess dead-letters list', ''],
        ['muster reprocess dead-letters replay --queue conversation', ''],
      ),
    )
  const filtered = (command: Command) =>
    command
      .addOption(data())
      .option('--project <id>', 'only of this project')
      .option('--from <time>', 'only from this time on', time)
      .option('--to <time>', 'only up to this time', time)
      .option('--limit <number>', 'at most so many', positive)
      .option('--id <id>', 'only these; repeatable', several, [])
      .option('--dry-run', 'count only')
      .option('--json', 'print the result as JSON')
  filtered(reprocess.command('deliveries'))
    .description('send webhook deliveries again, each as a new delivery, unless it was sent again since')
    .option('--webhook <id>', 'only of this webhook')
    .addOption(
      new Option('--status <status>', 'outcome of the delivery').choices(['failed', 'completed']).default('failed'),
    )
    .action(async options => (await import('./reprocess.ts')).reprocessDeliveries(options))
  filtered(reprocess.command('generations'))
    .description('wake turns that have not ended and for which no message exists')
    .addOption(new Option('--status <status>', 'only these').choices(['pending', 'in_progress']))
    .action(async options => (await import('./reprocess.ts')).reprocessGenerations(options))
  filtered(reprocess.command('runs'))
    .description('wake runs of orchestrations that can move and for which no message exists')
    .action(async options => (await import('./reprocess.ts')).reprocessRuns(options))
  filtered(reprocess.command('firings'))
    .description('fire triggers again whose firings failed, with the same input, or wake firings that nobody works on')
    .option('--trigger <id>', 'only of this trigger')
    .addOption(
      new Option('--status <status>', 'firings in this state').choices(['failed', 'pending']).default('failed'),
    )
    .action(async options => (await import('./reprocess.ts')).reprocessFirings(options))

  filtered(reprocess.command('ingestions'))
    .description('read the files of documents again, newest first; a worker does it in the name of the first admin')
    .addOption(
      new Option('--status <status>', 'documents in this state').choices(['failed', 'ready']).default('failed'),
    )
    .action(async options => (await import('./reprocess.ts')).reprocessIngestions(options))
  filtered(reprocess.command('embeddings'))
    .description('embed documents again with the model of the settings, newest first; found meanwhile as before')
    .option('--missing', 'only documents in which a chunk has no vector of this model')
    .action(async options => (await import('./reprocess.ts')).reprocessEmbeddings(options))
  reprocess
    .command('usage')
    .description('add up usage again, by day and project, where the sums are not what the events say')
    .addOption(data())
    .option('--project <id>', 'only of this project')
    .option('--from <time>', 'only from this time on', time)
    .option('--to <time>', 'only up to this time', time)
    .option('--limit <number>', 'at most so many days', positive)
    .option('--dry-run', 'count only')
    .option('--json', 'print the result as JSON')
    .action(async options => (await import('./reprocess.ts')).reprocessUsage(options))
  filtered(reprocess.command('memory'))
    .description('derive hashes, words and vectors of memories from their texts again, newest first')
    .option('--missing', 'only memories without a vector of the model of the settings')
    .action(async options => (await import('./reprocess.ts')).reprocessMemory(options))

  const dead = reprocess.command('dead-letters').description('messages that failed for good')
  dead
    .command('list')
    .description('list them, newest first')
    .addOption(data())
    .option('--queue <name>', 'only of this queue')
    .option('--limit <number>', 'at most so many; default 100', positive)
    .option('--json', 'print the result as JSON')
    .action(async options => (await import('./dead-letters.ts')).listDeadLetters(options))
  dead
    .command('inspect')
    .description('show one with its data and its last error')
    .argument('<id>')
    .addOption(data())
    .action(async (id, options) => (await import('./dead-letters.ts')).inspectDeadLetter(id, options))
  filtered(dead.command('replay'))
    .description('send them again, oldest first')
    .option('--queue <name>', 'only of this queue')
    .action(async options => (await import('./dead-letters.ts')).replayDeadLetters(options))

  const secrets = muster.command('secrets').description('the encryption of stored secrets')
  secrets
    .command('verify')
    .description('which key sealed how many values; exits 1 when some cannot be opened')
    .addOption(data())
    .option('--json', 'print the result as JSON')
    .action(async options => (await import('./secrets.ts')).verifyCommand(options))
  secrets
    .command('reencrypt')
    .description('seal everything under the current key; may be stopped and run again; exits 1 when values are left')
    .addOption(data())
    .option('--json', 'print the result as JSON')
    .action(async options => (await import('./secrets.ts')).reencryptCommand(options))

  muster
    .command('oauth')
    .description('the OAuth authorization server')
    .command('rotate-keys')
    .description('sign id_tokens with a new key; the one before verifies for a day')
    .addOption(data())
    .option('--json', 'print the ID of the key as JSON')
    .action(async options => (await import('./oauth.ts')).rotateKeysCommand(options))

  muster
    .command('settings')
    .description('list every setting with its default')
    .option('--markdown', 'print the table of docs/operations.md')
    .option('--write <file>', 'put that table between the markers of a file')
    .option('--env [file]', 'print an example environment file, or write it to a file')
    .option('--json', 'print the settings as JSON')
    .action(async options => (await import('./settings.ts')).settingsCommand(options))

  muster
    .command('bench')
    .description('measure this checkout: requests, files, turns, deliveries, searches, ingestion')
    .argument('[arguments...]', 'handed to test/bench/run.ts')
    .allowUnknownOption()
    .helpOption(false)
    .action(async args => (await import('./bench.ts')).runBench(args))

  muster.addCommand(doubleCommand())
  throwing(muster)
  return muster
}

/** Makes a command and those below it throw instead of ending the process. */
function throwing(command: Command): void {
  command.exitOverride()
  for (const child of command.commands) throwing(child)
}
