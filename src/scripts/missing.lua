-- Needs: r.
local e=type(r)=="table"and r["err"]
if e and(string.find(e,"nknown",1,true)or not string.find(e," access ",1,true)and(string.find(e,"NOPERM",1,true)or string.find(e,"ACL failure",1,true)or string.find(e,"user executing",1,true)))then
