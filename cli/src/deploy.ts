import { Caller } from './call.ts'
import { loadCommands } from './commands.ts'
import { Connection } from './connection.ts'
import { EXIT, type Failure, UsageError } from './failure.ts'
import { interruption } from './interrupt.ts'
import { findByName } from './named.ts'
import { addConnectionOptions, createParser, parseDuration, parseWith } from './parse.ts'
import { printAnswer } from './render.ts'
import { reportError } from './report.ts'
import { outputSettings } from './run.ts'
import { readTemplate } from './template.ts'
import { canAsk, note, printLine, requireYes, visible } from './terminal.ts'
import { fieldValue, isVisibleInArgv } from './values.ts'

type Change = {
  logical_id: string
  resource_type: string
  action: string
  replaces?: boolean
  diff?: { desired: object }
  overwrites?: { field: string }[]
}

const collect = (value: string, previous: string[] = []): string[] => [...previous, value]

/** `muster formations deploy`: plans a template, then creates or updates its formation. */
export async function deployCommand(args: string[]): Promise<number> {
  const parser = addConnectionOptions(createParser('muster formations deploy'))
    .description('Plan a template and deploy it.')
    .argument('<path>', 'a template in YAML or JSON, or a directory of templates, which together are one')
    .option('--name <name>', 'name of the formation; default the name of the file or directory')
    .option('--param <name=value>', 'value of a parameter; name=@file, name=env:NAME; repeatable', collect)
    .option('--import <name=id>', 'take over an existing resource as this one of the template; repeatable', collect)
    .option('--plan', 'only print the plan')
    .option('--wait', 'wait until the deploy has ended; default')
    .option('--no-wait', 'return once the deploy has started')
    .option('--force-conflicts', 'overwrite changes made outside the formation')
    .option('--yes', 'delete resources without a confirmation')
    .option('--timeout <duration>', 'limit of the wait', parseDuration)
  if (args.includes('--help')) {
    await printLine(parser.helpInformation())
    return EXIT.done
  }
  const { options, positional } = parseWith(parser, args)
  const { timeout, ...connectionOptions } = options
  const { name: fileName, template } = await readTemplate(positional[0])
  const name: string = options.name ?? fileName
  const parameters = await parametersOf(options.param ?? [])
  const connection = await Connection.open(connectionOptions)
  const settings = outputSettings(options, connection.settings.output)
  try {
    const caller = new Caller(connection, loadCommands())
    const formation = await findByName(caller, 'listFormations', name)
    const given = { template, ...(parameters ? { parameters } : {}), ...importsOf(options.import) }
    const plan = await caller.callById(
      'planFormation',
      { ...given, ...(formation ? { formation_id: formation.id } : {}) },
      { signal: interruption },
    )
    if (options.plan) {
      await printPlan(plan.changes, connection.body, settings.isHuman)
      return EXIT.done
    }
    if (!settings.isQuiet) for (const line of planLines(plan.changes)) note(line)
    await confirmDeletes(plan.changes, options.yes)
    const id = formation ? 'updateFormation' : 'createFormation'
    const command = caller.commandById(id)
    const body = formation
      ? { formation_id: formation.id, ...given, ...(options.forceConflicts ? { force_conflicts: true } : {}) }
      : { name, ...given }
    if (options.wait === false) {
      const started = await caller.call(command, { ...body, wait: false }, { signal: interruption })
      await printAnswer(started, connection.body, settings)
      return EXIT.done
    }
    const { startAndWait } = await import('./wait.ts')
    const record = await startAndWait(caller, command, body, { settings, timeout }, { signal: interruption })
    await printAnswer(record, connection.body, settings)
    return EXIT.done
  } catch (error) {
    if (interruption.aborted) return (interruption.reason as Failure).exitCode
    return reportError(error, { connection, isJson: options.json })
  }
}

async function parametersOf(given: readonly string[]): Promise<Record<string, string> | undefined> {
  if (given.length === 0) return undefined
  const parameters: Record<string, string> = {}
  for (const each of given) {
    const at = each.indexOf('=')
    if (at < 1) throw new UsageError('--param must be name=value')
    const value = each.slice(at + 1)
    const isRead = !isVisibleInArgv(value) || value.startsWith('@@')
    parameters[each.slice(0, at)] = isRead
      ? ((await fieldValue('--param', { name: 'param', in: 'body', secret: true }, [value])) as string)
      : value
  }
  return parameters
}

/** Returns the IDs of the resources to import, by their names in the template. */
function importsOf(given: readonly string[] = []): { import_resources?: Record<string, string> } {
  if (given.length === 0) return {}
  const pairs = given.map(each => {
    const at = each.indexOf('=')
    if (at < 1) throw new UsageError('--import must be name=id')
    return [each.slice(0, at), each.slice(at + 1)]
  })
  return { import_resources: Object.fromEntries(pairs) }
}

const SIGNS: Record<string, string> = { create: '+', update: '~', delete: '-' }

function planLines(changes: readonly Change[]): string[] {
  const changed = changes.filter(each => each.action !== 'no-op')
  if (changed.length === 0) return ['nothing to change']
  return changed.map(({ logical_id, resource_type, action, replaces, diff, overwrites }) => {
    const fields = action === 'update' && diff ? ` (${Object.keys(diff.desired).join(', ')})` : ''
    const notes = [
      replaces ? 'replaced' : '',
      overwrites?.length ? `overwrites ${overwrites.map(each => each.field).join(', ')}` : '',
    ]
    return visible([`${SIGNS[action]} ${resource_type} ${logical_id}${fields}`, ...notes.filter(Boolean)].join('  '))
  })
}

async function printPlan(changes: readonly Change[], body: string, isHuman: boolean): Promise<void> {
  for (const line of isHuman ? planLines(changes) : [body]) await printLine(line)
}

async function confirmDeletes(changes: readonly Change[], yes: boolean | undefined): Promise<void> {
  const lost = changes.filter(each => each.action === 'delete' || each.replaces)
  if (lost.length === 0 || yes) return
  const names = lost.map(each => each.logical_id).join(', ')
  if (!canAsk()) throw new UsageError(`the deploy deletes ${names}`, 'Add --yes.')
  await requireYes(`Delete ${visible(names)}?`)
}
