import fs from 'node:fs'
import path from 'node:path'
import { type DrillOptions, NotPossibleError, runDrill } from '#local/drills/drill.ts'
import { DRILLS } from '#local/drills/index.ts'
import type { DrillName, Profile } from '#local/drills/names.ts'
import { exitCodeOf, toMarkdown } from '#local/drills/report.ts'
import { print, printJson, printProgress } from './output.ts'

type Options = { url?: string; host: string; profile: Profile; seconds?: number; json?: boolean; out: string[] }

const INTERRUPTED = 130

/** `muster drill`: runs a drill, prints its report and sets the exit code. */
export async function drillCommand(name: DrillName, { json, out, ...options }: Options): Promise<void> {
  const interruption = new AbortController()
  const onSignal = () => interruption.abort(new Error('interrupted'))
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, onSignal)
  try {
    const report = await runDrill(DRILLS[name], {
      ...optionsOf(options),
      onProgress: printProgress,
      signal: interruption.signal,
    })
    const texts = { '.json': `${JSON.stringify(report, null, 2)}\n`, '.md': toMarkdown(report) }
    for (const file of out) fs.writeFileSync(file, texts[path.extname(file) as keyof typeof texts])
    if (json) printJson(report)
    else print(toMarkdown(report))
    process.exitCode = exitCodeOf(report)
  } catch (error) {
    if (interruption.signal.aborted) process.exit(INTERRUPTED)
    if (!(error instanceof NotPossibleError)) throw error
    printProgress(`muster: ${error.message}`)
    process.exitCode = 2
  }
}

function optionsOf({ url, host, profile, seconds }: Omit<Options, 'json' | 'out'>): DrillOptions {
  const { DATABASE_URL, MUSTER_TOKEN } = process.env
  if (!url) return { profile, seconds, databaseUrl: DATABASE_URL || undefined }
  if (!MUSTER_TOKEN)
    throw new NotPossibleError('MUSTER_TOKEN is not set: the drill creates a project with the token of an admin')
  return { profile, seconds, staging: { url: url.replace(/\/$/, ''), token: MUSTER_TOKEN, host } }
}
