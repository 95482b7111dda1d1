import { Text } from '@mantine/core'
import { memo } from 'react'
import { visible } from './text.tsx'

/** Length from which the next line begins a separate block. */
const BLOCK = 500

/** Splits a text into blocks of lines; a text that grows at its end changes the last block only. */
function blocksOf(text: string): string[] {
  const blocks: string[] = []
  for (let from = 0; from <= text.length; ) {
    const end = text.indexOf('\n', from + BLOCK)
    blocks.push(text.slice(from, end < 0 ? undefined : end))
    from = end < 0 ? text.length + 1 : end + 1
  }
  return blocks
}

const Block = memo(function Block({ text }: { text: string }) {
  return (
    <Text component="div" className="wrap">
      {visible(text)}
    </Text>
  )
})

/** A text while it arrives: finished blocks are not laid out again with each piece. */
export function StreamingText({ text }: { text: string }) {
  return (
    <div>
      {blocksOf(text).map((block, index) => (
        <Block key={index} text={block} />
      ))}
    </div>
  )
}
