/** Processor time that this thread uses for something, in milliseconds; what else the machine does is not in it. */
export async function processorMs(work: () => unknown): Promise<number> {
  const before = process.threadCpuUsage()
  await work()
  const { user, system } = process.threadCpuUsage(before)
  return (user + system) / 1000
}

/**
 * The longest turn of the event loop while something is done, in milliseconds of processor time that this thread used:
 * what other programs use does not count, nor do the threads that compile and collect garbage concurrently.
 */
export async function longestTurn(work: () => Promise<unknown>): Promise<number> {
  let longest = 0
  let last = process.threadCpuUsage()
  let done = false
  const watch = () => {
    const { user, system } = process.threadCpuUsage(last)
    longest = Math.max(longest, (user + system) / 1000)
    last = process.threadCpuUsage()
    if (!done) setImmediate(watch)
  }
  setImmediate(watch)
  await work()
  done = true
  await new Promise(resolve => setImmediate(resolve))
  return longest
}

/**
 * The longest turn of the event loop in the best of up to five repetitions of something, as `longestTurn`: the compiler of JavaScript
 * and the collection of garbage may come in between, though not each time. Ends with the first repetition below `limit`.
 */
export async function longestTurnAtBest(work: (time: number) => Promise<unknown>, limit: number): Promise<number> {
  let best = Number.POSITIVE_INFINITY
  for (let time = 0; time < 5 && best >= limit; time++) best = Math.min(best, await longestTurn(() => work(time)))
  return best
}
