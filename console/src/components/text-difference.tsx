import { Code, ScrollArea, SimpleGrid, Stack, Text } from '@mantine/core'
import { useMemo } from 'react'
import * as strings from '#strings.ts'
import { visible } from './text.tsx'
import { Value } from './value.tsx'

/** Words of a text above which it is shown without marks: comparing takes the product of both numbers. */
const WORDS = 1500

type Piece = { text: string; isCommon: boolean }

const wordsOf = (text: string): string[] => text.match(/\S+\s*|\s+/g) ?? []

/** Joins words, those next to each other in one piece. */
function piecesOf(words: string[], common: ReadonlySet<number>): Piece[] {
  const pieces: Piece[] = []
  words.forEach((text, index) => {
    const isCommon = common.has(index)
    const last = pieces.at(-1)
    if (last?.isCommon === isCommon) last.text += text
    else pieces.push({ text, isCommon })
  })
  return pieces
}

/** Splits two texts into what both have in the same order (the longest common subsequence of words) and the rest. */
function compareTexts(before: string, after: string): [Piece[], Piece[]] | null {
  const [left, right] = [wordsOf(before), wordsOf(after)]
  if (left.length > WORDS || right.length > WORDS) return null
  const width = right.length + 1
  const lengths = new Uint16Array((left.length + 1) * width)
  for (let i = left.length - 1; i >= 0; i--)
    for (let j = right.length - 1; j >= 0; j--)
      lengths[i * width + j] =
        left[i] === right[j]
          ? lengths[(i + 1) * width + j + 1] + 1
          : Math.max(lengths[(i + 1) * width + j], lengths[i * width + j + 1])
  const [inLeft, inRight] = [new Set<number>(), new Set<number>()]
  for (let i = 0, j = 0; i < left.length && j < right.length; ) {
    if (left[i] === right[j]) {
      inLeft.add(i++)
      inRight.add(j++)
    } else if (lengths[(i + 1) * width + j] >= lengths[i * width + j + 1]) i++
    else j++
  }
  return [piecesOf(left, inLeft), piecesOf(right, inRight)]
}

/** Two texts next to each other, with the words marked in which they differ. */
export function TextDifference({
  before,
  after,
  labels = [strings.agents.before, strings.agents.after],
}: {
  before: string | null
  after: string | null
  labels?: [before: string, after: string]
}) {
  const compared = useMemo(
    () => (before !== null && after !== null ? compareTexts(visible(before), visible(after)) : null),
    [before, after],
  )
  const sides = [before, after].map((text, side) => ({ text, label: labels[side], pieces: compared?.[side] }))
  return (
    <SimpleGrid cols={{ base: 1, sm: 2 }}>
      {sides.map(({ text, label, pieces }, side) => (
        <Stack gap={2} key={label} miw={0}>
          <Text size="sm" c="dimmed">
            {label}
          </Text>
          {text === null && <Text c="dimmed">{strings.none}</Text>}
          {text !== null && !pieces && <Value value={text} label={label} />}
          {pieces && (
            <ScrollArea.Autosize
              mah={420}
              type="auto"
              viewportProps={{ tabIndex: 0, role: 'region', 'aria-label': label }}
            >
              <Code block className="wrap">
                {pieces.map((piece, index) => (
                  <DifferencePiece key={index} piece={piece} isBefore={side === 0} />
                ))}
              </Code>
            </ScrollArea.Autosize>
          )}
        </Stack>
      ))}
    </SimpleGrid>
  )
}

function DifferencePiece({ piece: { text, isCommon }, isBefore }: { piece: Piece; isBefore: boolean }) {
  if (isCommon) return text
  return isBefore ? <del className="removed">{text}</del> : <ins className="added">{text}</ins>
}
