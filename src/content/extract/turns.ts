/** The projects whose work goes on in this process, and those that wait until some of it is done, in the order they came. */
const turns: string[] = []
const waiting: { project: string; begin: () => void }[] = []

/**
 * Does work of which a process does at most so much at once. What waits has its turn by its project: the one of which
 * least is being done comes first. Throws the reason of `signal` when that aborts before its turn.
 */
export async function inTurn<T>(
  project: string,
  most: number,
  signal: AbortSignal | undefined,
  work: () => Promise<T>,
): Promise<T> {
  signal?.throwIfAborted()
  if (turns.length < most) turns.push(project)
  else await turn(project, signal)
  try {
    return await work()
  } finally {
    passOn(project)
  }
}

const turn = (project: string, signal: AbortSignal | undefined): Promise<void> =>
  new Promise<void>((resolve, reject) => {
    const begin = () => {
      signal?.removeEventListener('abort', leave)
      turns.push(project)
      resolve()
    }
    const waiter = { project, begin }
    const leave = () => {
      waiting.splice(waiting.indexOf(waiter), 1)
      reject(signal?.reason)
    }
    signal?.addEventListener('abort', leave, { once: true })
    waiting.push(waiter)
  })

/** The project that gives its turn away counts as one that still has it, so that even a single turn goes around. */
function passOn(project: string) {
  const count = (project: string) => turns.filter(each => each === project).length
  const [next] = waiting.toSorted((one, other) => count(one.project) - count(other.project))
  turns.splice(turns.indexOf(project), 1)
  if (!next) return
  waiting.splice(waiting.indexOf(next), 1)
  next.begin()
}
