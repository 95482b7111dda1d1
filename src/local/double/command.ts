import { readFile } from 'node:fs/promises'
import { Command, InvalidArgumentError, Option } from 'commander'
import type { Script } from './script.ts'
import { parseScripts } from './script.ts'
import { startDouble } from './server.ts'

type ServeOptions = { port: number; host: string; script: string[]; dims: number; strict: boolean; log?: string }

/**
 * Creates the `llm-double` command. `serve` runs the server until SIGTERM or SIGINT; `check` validates scripts. Options
 * take precedence over LLM_DOUBLE_PORT and LLM_DOUBLE_SCRIPT (comma-separated).
 */
export function doubleCommand(): Command {
  const command = new Command('llm-double').description('deterministic OpenAI-compatible model for tests')
  command
    .command('serve')
    .description('run the server until SIGTERM or SIGINT')
    .addOption(
      new Option('--port <number>', 'port, 0 for a free one')
        .env('LLM_DOUBLE_PORT')
        .default(4010)
        .argParser(integer(0, 65_535)),
    )
    .option('--host <address>', 'address to listen on', '127.0.0.1')
    .option('--script <file>', 'script in JSON or YAML; repeatable', (file, list: string[]) => [...list, file], [])
    .option('--dims <number>', 'dimensions of embeddings', integer(8, 4096), 1536)
    .option('--strict', 'refuse requests without a matching rule', false)
    .option('--log <file>', 'append a line of JSON per request to a file')
    .action(runServer)
  command
    .command('check')
    .description('validate scripts')
    .argument('<file...>', 'scripts in JSON or YAML')
    .action(checkScripts)
  return command
}

async function runServer(options: ServeOptions): Promise<void> {
  const files = options.script.length > 0 ? options.script : (process.env.LLM_DOUBLE_SCRIPT ?? '').split(',')
  const { scripts, problems } = await readScripts(files.map(file => file.trim()).filter(Boolean))
  if (problems.length > 0) return reportProblems(problems)
  let double: Awaited<ReturnType<typeof startDouble>>
  try {
    double = await startDouble({ ...options, scripts })
  } catch (error) {
    return reportProblems([`serve: ${(error as Error).message}`])
  }
  const stop = () => void double.close().then(() => process.exit(0))
  process.once('SIGTERM', stop)
  process.once('SIGINT', stop)
  process.stdout.write(`${JSON.stringify({ listening: double.url })}\n`)
}

async function checkScripts(files: string[]): Promise<void> {
  const { problems } = await readScripts(files)
  for (const problem of problems) process.stdout.write(`${problem}\n`)
  if (problems.length > 0) process.exitCode = 1
}

function reportProblems(problems: string[]): void {
  for (const problem of problems) process.stderr.write(`${problem}\n`)
  process.exitCode = 1
}

/** Reads script files. With several files, the path of a problem starts with the name of the file. */
async function readScripts(files: string[]): Promise<{ scripts: Script[]; problems: string[] }> {
  const scripts: Script[] = []
  const problems: string[] = []
  for (const file of files) {
    let text: string
    try {
      text = await readFile(file, 'utf8')
    } catch (error) {
      problems.push(`${file}: ${(error as Error).message}`)
      continue
    }
    const prefix = files.length > 1 ? `${file}: ` : ''
    const parsed = parseScripts(text)
    problems.push(...parsed.problems.map(problem => prefix + problem))
    for (const script of parsed.scripts) {
      if (scripts.some(each => each.lane === script.lane))
        problems.push(`${prefix}lane: "${script.lane}" is used twice`)
      else scripts.push(script)
    }
  }
  return { scripts, problems }
}

function integer(min: number, max: number): (text: string) => number {
  return text => {
    const value = Number(text)
    if (text.trim() === '' || !Number.isInteger(value) || value < min || value > max)
      throw new InvalidArgumentError(`must be an integer from ${min} to ${max}`)
    return value
  }
}
