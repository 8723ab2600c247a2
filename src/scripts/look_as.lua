-- Needs: held, token.
if type(held)=="table"then return held end
if held then return "="..token..string.sub(held,1,513) end
return 0
