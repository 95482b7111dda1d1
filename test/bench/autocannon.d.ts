declare module 'autocannon' {
  namespace autocannon {
    type Request = { method?: string; headers?: Record<string, string>; body?: string }
    type Options = {
      url: string
      connections?: number
      duration?: number
      /** Number of requests, in place of a duration. */
      amount?: number
      method?: string
      headers?: Record<string, string>
      body?: string
      requests?: (Request & { setupRequest?(request: Request): Request })[]
    }
    type Result = {
      requests: { average: number; total: number }
      latency: { p50: number; p99: number }
      statusCodeStats: Record<string, { count: number }>
    }
  }
  type Running = Promise<autocannon.Result> & {
    on(event: 'response', heard: (client: object, status: number, bytes: number, ms: number) => void): void
  }
  function autocannon(options: autocannon.Options): Running
  export default autocannon
}
