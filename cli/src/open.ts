import { canOpenBrowser, openBrowser } from './browser.ts'
import { Connection } from './connection.ts'
import { EXIT, UsageError } from './failure.ts'
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
    const project = await connection.projectId()
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
