import { canOpenBrowser, openBrowser } from './browser.ts'
import { Connection } from './connection.ts'
import { EXIT, isNoAnswer, isRefusal, UsageError } from './failure.ts'
import { addConnectionOptions, createParser, parseWith } from './parse.ts'
import { reportError } from './report.ts'
import { isTerminal, note, printLine } from './terminal.ts'

/** `muster open [view]`: opens the console in the browser; prints its address where none can be opened. */
export async function openCommand(args: string[]): Promise<number> {
  const parser = addConnectionOptions(createParser('muster open'), { output: false })
    .description('Open the console in the browser, or print its address where there is no browser or no terminal.')
    .argument('[view]', 'view of the project, such as inbox or agents/<agent_id>; default start')
  if (args.includes('--help')) {
    await printLine(parser.helpInformation())
    return EXIT.done
  }
  const { options, positional } = parseWith(parser, args)
  const [view] = positional
  if (view !== undefined && !/^\w[\w-]*(\/\w[\w-]*)*$/.test(view))
    throw new UsageError('the view must be a path of the console, such as inbox')
  const connection = await Connection.open(options)
  try {
    const project = (await connection.projectId()) ?? (await boundProject(connection))
    if (view && !project) throw new UsageError('a view belongs to a project', 'Add --project <id or name>.')
    const url = `${connection.base}/app${project ? `/p/${project}/${view ?? 'start'}` : ''}`
    if (!isTerminal() || !canOpenBrowser()) await printLine(url)
    else {
      await openBrowser(url)
      if (!options.quiet) note(`opened ${url}`)
    }
    return EXIT.done
  } catch (error) {
    return reportError(error, { connection })
  }
}

/** Returns the project to which the credential is bound, if there is one. */
async function boundProject(connection: Connection): Promise<string | undefined> {
  const { getMe } = await import('@muster/client/operations')
  try {
    const { credential } = await getMe(await connection.client())
    return credential.project_id ?? undefined
  } catch (error) {
    // Without a credential or a service the address of the console is still known.
    if (isNoAnswer(error) || (isRefusal(error) && error.status === 401)) return undefined
    throw error
  }
}
