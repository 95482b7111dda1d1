import { Anchor, Code, ScrollArea, Table, Text, Title } from '@mantine/core'
import { gfmTableFromMarkdown } from 'mdast-util-gfm-table'
import { gfmTable } from 'micromark-extension-gfm-table'
import type { ReactNode } from 'react'
import { memo } from 'react'
import ReactMarkdown, { type Components } from 'react-markdown'
import * as strings from '#strings.ts'
import { isCostlyMarkdown, visible } from './untrusted.ts'
import { Value } from './value.tsx'

type Node = { value?: string; children?: Node[] }

/** Makes hidden characters of texts visible, also those written as character references. */
const showHidden = () =>
  function show(node: Node): void {
    if (node.value !== undefined) node.value = visible(node.value)
    node.children?.forEach(show)
  }

/** The settings of the parser, which plugins of Markdown extend. */
type Parser = { data(): { micromarkExtensions?: unknown[]; fromMarkdownExtensions?: unknown[] } }

/** Parses tables, and nothing else of GitHub's Markdown. */
function tables(this: Parser) {
  const data = this.data()
  data.micromarkExtensions = [...(data.micromarkExtensions ?? []), gfmTable()]
  data.fromMarkdownExtensions = [...(data.fromMarkdownExtensions ?? []), gfmTableFromMarkdown()]
}

const SCHEMES = ['http:', 'https:', 'mailto:']

/** A link of a model or a user: it shows where it leads; an address of another scheme is text. */
function ExternalLink({ href, children }: { href?: string; children?: ReactNode }) {
  const url = href ? URL.parse(href) : null
  if (!url || !SCHEMES.includes(url.protocol)) return <>{children}</>
  return (
    <Anchor href={url.href} target="_blank" rel="noopener noreferrer" underline="always">
      {children} ({url.host || url.pathname})
    </Anchor>
  )
}

const heading = ({ children }: { children?: ReactNode }) => (
  <Title order={3} size="h5" mt="sm">
    {children}
  </Title>
)

const components: Components = {
  a: ({ href, children }) => <ExternalLink href={href}>{children}</ExternalLink>,
  img: ({ src, alt }) => (
    <ExternalLink href={typeof src === 'string' ? src : undefined}>{visible(alt || 'image')}</ExternalLink>
  ),
  h1: heading,
  h2: heading,
  h3: heading,
  h4: heading,
  h5: heading,
  h6: heading,
  p: ({ children }) => (
    <Text component="p" my={6}>
      {children}
    </Text>
  ),
  code: ({ children }) => <Code>{children}</Code>,
  pre: ({ children }) => (
    <ScrollArea type="auto" viewportProps={{ tabIndex: 0 }}>
      <pre className="mono">{children}</pre>
    </ScrollArea>
  ),
  ul: ({ children }) => <ul dir="auto">{children}</ul>,
  ol: ({ children, start }) => (
    <ol dir="auto" start={start}>
      {children}
    </ol>
  ),
  table: ({ children }) => (
    <ScrollArea type="auto" viewportProps={{ tabIndex: 0, role: 'region', 'aria-label': strings.table }}>
      <Table withTableBorder withColumnBorders my="xs" w="auto" dir="auto">
        {children}
      </Table>
    </ScrollArea>
  ),
  thead: ({ children }) => <Table.Thead>{children}</Table.Thead>,
  tbody: ({ children }) => <Table.Tbody>{children}</Table.Tbody>,
  tr: ({ children }) => <Table.Tr>{children}</Table.Tr>,
  th: ({ children, style }) => <Table.Th ta={style?.textAlign}>{children}</Table.Th>,
  td: ({ children, style }) => <Table.Td ta={style?.textAlign}>{children}</Table.Td>,
}

/** Text of a model or a user as Markdown, without HTML and without images; costly texts are shown as text. */
function Markdown({ text }: { text: string }) {
  if (isCostlyMarkdown(text)) return <Value value={text} label={strings.text} />
  return (
    <ReactMarkdown
      components={components}
      urlTransform={url => url}
      remarkPlugins={[tables as never]}
      rehypePlugins={[showHidden]}
    >
      {text}
    </ReactMarkdown>
  )
}

/** Parsed again only for another text. */
export default memo(Markdown)
