/**
 * Returns the environment of a thread: none of the secrets of the process, but its compile cache, without which a thread strips
 * the types of its program again, for 70 ms of processor time and 18 MB of memory.
 */
export function threadEnvironment(): NodeJS.ProcessEnv {
  const { NODE_COMPILE_CACHE } = process.env
  return NODE_COMPILE_CACHE ? { NODE_COMPILE_CACHE } : {}
}
