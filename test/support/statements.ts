/**
 * Returns the statements that every round sent, each as often as in the round that sent it least: statements of the work of a
 * round, without reads of caches that expired and without polls, of which a slow round meets more.
 */
export function statementsOfEach(rounds: readonly (readonly string[])[]): string[] {
  return rounds
    .map(texts => [...texts])
    .reduce((common, texts) =>
      common.filter(text => {
        const index = texts.indexOf(text)
        if (index >= 0) texts.splice(index, 1)
        return index >= 0
      }),
    )
}
