/** Abilities of a Claude model, by the version in its name. */
export type ClaudeModel = {
  /** Whether a request may end with the beginning of the answer. */
  prefill: boolean
  /** Whether thinking has a budget of the caller. */
  manual: boolean
  /** Whether temperature, top_p and top_k are accepted, and both of the first two. */
  sampling: boolean
  bothSamplers: boolean
}

/** Returns the abilities of a Claude model by its ID at any vendor, or null for another maker's model. */
export function claudeModel(id: string): ClaudeModel | null {
  if (!id.includes('claude')) return null
  const [, major, minor = '0'] =
    /claude-[a-z]+-(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)/.exec(id) ?? /claude-(\d)[-.](\d)/.exec(id) ?? []
  const version = major === undefined ? 3 : Number(major) + Number(minor) / 10
  return {
    prefill: version < 4.6,
    manual: version < 4.7,
    sampling: version < 4.7,
    bothSamplers: version < 4.5,
  }
}
