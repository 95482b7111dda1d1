/**
 * The configuration of a process. Each declaration of settings adds its settings to this interface; `src/settings.ts` lists
 * all, and `src/config.ts` reads them from the environment.
 */
export interface Config {
  /** Whether NODE_ENV is production. */
  production: boolean
}

export type SettingProblem = { variable: string; message: string }

/** Invalid settings, one per line of the message. `variable` is the first. */
export class ConfigError extends Error {
  readonly variable: string
  readonly problems: readonly SettingProblem[]
  constructor(variable: string, message: string, others: readonly SettingProblem[] = []) {
    const problems = [{ variable, message }, ...others]
    super(problems.map(problem => `${problem.variable}: ${problem.message}`).join('\n'))
    this.variable = variable
    this.problems = problems
  }
}
