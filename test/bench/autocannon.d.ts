declare module 'autocannon' {
  namespace autocannon {
    type Request = { method?: string; headers?: Record<string, string>; body?: string }
    type Options = {
      url: string
      connections?: number
      duration?: number
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
  function autocannon(options: autocannon.Options): Promise<autocannon.Result>
  export default autocannon
}
