import fs from 'node:fs'
import path from 'node:path'

/** What one test file took: wall time and processor time of the process that ran it and of those it started. */
export type FileTime = { file: string; ms: number; cpuMs: number }

const TICKS_PER_SECOND = 100

const read = (file: string): string => {
  try {
    return fs.readFileSync(file, 'utf8')
  } catch {
    return ''
  }
}

/** Sum of the fields of a stat file from the 14th on, without the first ones up to the name, in ms. */
function ticksAsMs(file: string, end: number): number {
  const stat = read(file)
  // The name of the program, in brackets, may hold blanks.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  return (fields.slice(11, end).reduce((sum, ticks) => sum + Number(ticks), 0) * 1000) / TICKS_PER_SECOND
}

/** Processor time of the event loop of a process and of all its threads, in ms, as Linux counts it; 0 elsewhere. */
export const loopAndProcessTime = (pid: number): { loop: number; process: number } => ({
  loop: ticksAsMs(`/proc/${pid}/task/${pid}/stat`, 13),
  process: ticksAsMs(`/proc/${pid}/stat`, 13),
})

/** Processor time of a process, of its children that ended and of those that run, in ms, as Linux counts it; 0 elsewhere. */
export function processorTime(pid: number): number {
  // utime, stime, cutime and cstime are fields 14 to 17.
  const own = ticksAsMs(`/proc/${pid}/stat`, 15)
  // Children are of the thread that started them: the first one, in all programs of tests.
  const children = read(`/proc/${pid}/task/${pid}/children`).split(' ').filter(Boolean)
  return children.reduce((sum, child) => sum + processorTime(Number(child)), own)
}

let since = { at: performance.timeOrigin, cpu: 0 }

/** Leaves what each file took in the file that TEST_TIMES names, for the test command. Mocha calls it once a file. */
export const mochaHooks = {
  afterAll(this: Mocha.Context) {
    const times = process.env.TEST_TIMES
    const file = this.test?.parent?.suites[0]?.file
    const now = { at: performance.timeOrigin + performance.now(), cpu: processorTime(process.pid) }
    if (times && file) {
      const line: FileTime = {
        file: path.relative(process.cwd(), file),
        ms: now.at - since.at,
        cpuMs: now.cpu - since.cpu,
      }
      fs.appendFileSync(times, `${JSON.stringify(line)}\n`)
    }
    since = now
  },
}
